/**
 * Outlive's client for browsers and Node: submit runs, and follow each to its end exactly once.
 *
 * Decides: when to connect again and from where, what is a repetition, and when it is over. Does not decide:
 * what a chunk means, what stays on the screen when a run starts again, or who the user is (see `headers`).
 * Leaving never stops a run; only `stop` asks for that. Times are in milliseconds.
 *
 * @typedef {{agent: string, input?: unknown, thread?: string, metadata?: Record<string, unknown>,
 *   on_disconnect?: "cancel" | "continue", on_busy?: "reject" | "enqueue" | "interrupt" | "rollback",
 *   on_torn?: "resume" | "restart" | "reject" | "rollback", not_before?: number, webhook?: string}} NewRun
 * @typedef {Record<string, any> & {run_id: string, state: string}} RunRecord  a run as the server records it
 * @typedef {"attempt" | "restart" | "chunk" | "note" | "end" | "gap"} EventType
 * @typedef {{type: EventType, id: string, seq: number, epoch: number, mode: string | null, data: any}} RunEvent
 * @typedef {{state: "connecting" | "open" | "waiting" | "closed", delay?: number, error?: unknown}} Condition
 * @typedef {{[type in EventType]?: (event: RunEvent) => unknown}} Handlers
 * @typedef {{signal?: AbortSignal, onConnection?: (now: Condition) => void, gaps?: "refuse" | "skip"}} Watching
 *   `signal` leaves; `onConnection` hears of the connection; `gaps` is what an expired cursor means
 * @typedef {Watching & {key?: string, intent?: string, to?: string}} Submitting
 *   `key` is the idempotency key; `intent` names a place that keeps one across reloads of the page; `to` is the path
 *   of a handler that is not the router's
 * @typedef {HeadersInit | (() => HeadersInit | Promise<HeadersInit>)} HeaderSource
 * @typedef {Pick<Storage, "getItem" | "setItem" | "removeItem">} Store
 * @typedef {{url: string, headers: HeaderSource, credentials: RequestCredentials, fetch: typeof fetch,
 *   storage: Store | null, silence: number, delay: number, longestDelay: number, retries: number,
 *   longestEvent: number}} Options
 * @typedef {{key: string, body: string, to?: string}} Intent
 * @typedef {Watching & Partial<Intent> & {after?: string, run?: string, seq?: number,
 *   ended?: (cutOff: boolean) => void}} Source
 */
export type NewRun = {
    agent: string;
    input?: unknown;
    thread?: string;
    metadata?: Record<string, unknown>;
    on_disconnect?: "cancel" | "continue";
    on_busy?: "reject" | "enqueue" | "interrupt" | "rollback";
    on_torn?: "resume" | "restart" | "reject" | "rollback";
    not_before?: number;
    webhook?: string;
};
export type RunRecord = Record<string, any> & {
    run_id: string;
    state: string;
};
export type EventType = "attempt" | "restart" | "chunk" | "note" | "end" | "gap";
export type RunEvent = {
    type: EventType;
    id: string;
    seq: number;
    epoch: number;
    mode: string | null;
    data: any;
};
export type Condition = {
    state: "connecting" | "open" | "waiting" | "closed";
    delay?: number;
    error?: unknown;
};
export type Handlers = {
    [type in EventType]?: (event: RunEvent) => unknown;
};
export type Watching = {
    signal?: AbortSignal;
    onConnection?: (now: Condition) => void;
    gaps?: "refuse" | "skip";
};
export type Submitting = Watching & {
    key?: string;
    intent?: string;
    to?: string;
};
export type HeaderSource = HeadersInit | (() => HeadersInit | Promise<HeadersInit>);
export type Store = Pick<Storage, "getItem" | "setItem" | "removeItem">;
export type Options = {
    url: string;
    headers: HeaderSource;
    credentials: RequestCredentials;
    fetch: typeof fetch;
    storage: Store | null;
    silence: number;
    delay: number;
    longestDelay: number;
    retries: number;
    longestEvent: number;
};
export type Intent = {
    key: string;
    body: string;
    to?: string;
};
export type Source = Watching & Partial<Intent> & {
    after?: string;
    run?: string;
    seq?: number;
    ended?: (cutOff: boolean) => void;
};
/** A refusal by the server, or what came of a connection. `problem` has every field that the server sent. */
export declare class OutliveError extends Error {
    problem: Record<string, any>;
    /** A stable word, as the documentation lists them. @type {string} */
    code: string;
    /** The HTTP status, or 0 if there was no answer. @type {number} */
    status: number;
    /** The run that it is about. @type {string | undefined} */
    runId: string | undefined;
    /** Whether the same request may succeed later. */
    transient: boolean;
    /** What the server asked to wait. */
    retryAfter: number | undefined;
    /**
     * @param {Record<string, any>} problem
     * @param {{transient?: boolean, retryAfter?: number, cause?: unknown}} [more]
     */
    constructor(problem: Record<string, any>, { transient, retryAfter, cause }?: {
        transient?: boolean;
        retryAfter?: number;
        cause?: unknown;
    });
}
/** Server-sent events out of bytes that are cut anywhere, by the rules of the HTML standard. */
export declare class EventParser {
    #private;
    /** The last event id that was set, also by an event without data. */
    lastEventId: string;
    /** The last `retry`. @type {number | undefined} */
    retry: number | undefined;
    /** @param {number} [limit] characters that one event may have; more raise an OutliveError */
    constructor(limit?: number);
    /**
     * The events that these bytes complete.
     * @param {Uint8Array} bytes
     */
    push(bytes: Uint8Array): {
        type: string;
        data: string;
        id: string;
    }[];
}
/** One transmission: what can cut it, and when something was last heard of it. */
declare class Connection {
    #private;
    signal: AbortSignal;
    /** Whether it was worth its while, so that what comes after it is no repeated failure. */
    progress: boolean;
    /**
     * @param {AbortSignal | undefined} leaving
     * @param {number} silence
     */
    constructor(leaving: AbortSignal | undefined, silence: number);
    /**
     * Await it as long as the connection is wanted, whether or not it minds our signal itself.
     * @template T
     * @param {() => T | Promise<T>} work
     * @returns {Promise<T>}
     */
    within<T>(work: () => T | Promise<T>): Promise<T>;
    /**
     * Await it, but not through more silence than a living server keeps.
     * @template T
     * @param {() => Promise<T>} work
     */
    heard<T>(work: () => Promise<T>): Promise<T>;
    close(): void;
}
/** Requests and waits that `Outlive` and `Stream` share. */
declare class Wire {
    #private;
    options: Options;
    /** @param {Options} options */
    constructor(options: Options);
    /** @param {AbortSignal} [leaving] */
    connection(leaving?: AbortSignal): Connection;
    /**
     * One request; an answer that is no success is thrown.
     * @param {Connection} connection
     * @param {string} path
     * @param {{method?: string, headers?: Record<string, string>, body?: string}} request
     */
    send(connection: Connection, path: string, request: {
        method?: string;
        headers?: Record<string, string>;
        body?: string;
    }): Promise<Response>;
    /**
     * A request with a JSON answer, sent again while that may help.
     * @param {string} path
     * @param {{method?: string, headers?: Record<string, string>, body?: string, signal?: AbortSignal}} [more]
     * @returns {Promise<any>}
     */
    call(path: string, { signal, headers, ...request }?: {
        method?: string;
        headers?: Record<string, string>;
        body?: string;
        signal?: AbortSignal;
    }): Promise<any>;
    /**
     * How long to wait: from the hint, or what is usual, up to twice that, and twice as much for each failure. It is
     * random, so that the clients of a server that went away do not all come back at once.
     * @param {number} failures
     * @param {number | undefined} hint
     * @param {OutliveError} [error]
     */
    delay(failures: number, hint: number | undefined, error?: OutliveError): number;
    /**
     * Wait; a network or a page that comes back ends it, unless the server itself named a time.
     * @param {number} delay
     * @param {AbortSignal} [signal]
     * @param {OutliveError} [error]
     */
    pause(delay: number, signal?: AbortSignal, error?: OutliveError): Promise<void>;
}
/** One run as its viewer has it: an async iterator over its events, each once, up to and with `end`. */
export declare class Stream {
    #private;
    /** The run's id; "" until the server has named it. */
    id: string;
    /** How the submit came to be this run, if there was one: created, attached, replayed, continued. */
    admitted: string;
    /**
     * @param {Wire} wire
     * @param {Source} source
     */
    constructor(wire: Wire, source: Source);
    /** The id of the last event that was taken: where `follow` goes on. Keep it with what you show. */
    get cursor(): string;
    /** Ask the server to stop the run. Its `end` still comes. */
    stop(): Promise<any>;
    /**
     * Read the run's record.
     * @returns {Promise<RunRecord>}
     */
    read(): Promise<RunRecord>;
    /** Close the connection and end the iteration. The run goes on, unless its policy is to end with its viewers. */
    leave(): Promise<void>;
    /**
     * Call a handler for each event, one after the other, and return the `end`: null if the iteration ended without.
     * @param {Handlers} handlers
     * @returns {Promise<RunEvent | null>}
     */
    each(handlers: Handlers): Promise<RunEvent | null>;
    /** Wait until the server has answered, or refused. */
    opened(): Promise<this>;
    /** @returns {AsyncIterator<RunEvent, undefined>} */
    [Symbol.asyncIterator](): AsyncIterator<RunEvent, undefined>;
}
/** The client of one server. */
export declare class Outlive {
    #private;
    /**
     * `url` is where the router is: the page's origin unless given. `headers` are sent with each request; a function
     * is asked each time, so that a token can be new. `silence` is how long a connection may say nothing; `delay` and
     * `longestDelay` bound the waits between tries; `retries` is how often in a row a stream may fail to get anywhere.
     * `longestEvent` is in characters.
     * @param {Partial<Options>} [options]
     */
    constructor(options?: Partial<Options>);
    start(request: NewRun, options?: Submitting & {
        to?: undefined;
    }): Promise<Stream>;
    start(request: unknown, options: Submitting & {
        to: string;
    }): Promise<Stream>;
    /**
     * Go on with what `start` began under this intent, also after a reload; null if nothing is under way. The run comes
     * from its first event, or after `after`, if that is a cursor of it.
     * @param {string} intent
     * @param {Watching & {after?: string}} [options]
     */
    resume(intent: string, { after, ...watching }?: Watching & {
        after?: string;
    }): Promise<Stream | null>;
    /**
     * Submit a run without watching it; returns its record.
     * @param {NewRun} request
     * @param {{key?: string, signal?: AbortSignal}} [options]
     * @returns {Promise<RunRecord & {admitted: string}>}
     */
    submit(request: NewRun, { key, signal }?: {
        key?: string;
        signal?: AbortSignal;
    }): Promise<RunRecord & {
        admitted: string;
    }>;
    /**
     * Follow a run from its first event, or after a cursor. It connects when it is iterated.
     * @param {string} run
     * @param {Watching & {after?: string | number}} [options]
     */
    follow(run: string, { after, ...watching }?: Watching & {
        after?: string | number;
    }): Stream;
    /**
     * @param {string} run
     * @returns {Promise<RunRecord>}
     */
    read(run: string): Promise<RunRecord>;
    /**
     * Ask a run to stop.
     * @param {string} run
     * @returns {Promise<{outcome: "stopped" | "requested" | "already", run: RunRecord}>}
     */
    stop(run: string): Promise<{
        outcome: "stopped" | "requested" | "already";
        run: RunRecord;
    }>;
    /**
     * Runs, newest first; `before` of the answer is for the next page.
     * @param {{agent?: string, state?: string, thread?: string, limit?: number, before?: string}} [query]
     * @returns {Promise<{runs: RunRecord[], before: string | null}>}
     */
    list(query?: {
        agent?: string;
        state?: string;
        thread?: string;
        limit?: number;
        before?: string;
    }): Promise<{
        runs: RunRecord[];
        before: string | null;
    }>;
    /**
     * A thread: its live runs and its newest runs.
     * @param {string} name
     * @returns {Promise<{thread: string, live: string[], runs: RunRecord[], last_seq: number, created_at: number}>}
     */
    thread(name: string): Promise<{
        thread: string;
        live: string[];
        runs: RunRecord[];
        last_seq: number;
        created_at: number;
    }>;
}
export {};
