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

/** A connection that lasted this long was no failure, even if nothing happened in the run meanwhile. */
const LASTED = 5_000;
/** No hint of a server makes us wait for longer. */
const LONGEST_HINT = 600_000;
/** A timer of more is over at once. */
const LONGEST_TIMER = 2 ** 31 - 1;
const CALL_TRIES = 5;
const LEFT = Symbol("left");
const CUT_OFF = ["disconnect", "timeout", "lost"];
/** True between `pagehide` and `pageshow`: a page that keeps connections cannot be kept by the browser. */
let away = false;
globalThis.addEventListener?.("pagehide", () => (away = true));
globalThis.addEventListener?.("pageshow", () => (away = false));

/** A refusal by the server, or what came of a connection. `problem` has every field that the server sent. */
export class OutliveError extends Error {
  /**
   * @param {Record<string, any>} problem
   * @param {{transient?: boolean, retryAfter?: number, cause?: unknown}} [more]
   */
  constructor(problem, { transient = false, retryAfter, cause } = {}) {
    super([problem.title ?? problem.message, problem.hint].filter(Boolean).join(" "), { cause });
    this.name = "OutliveError";
    this.problem = problem;
    /** A stable word, as the documentation lists them. @type {string} */
    this.code = problem.code ?? "error";
    /** The HTTP status, or 0 if there was no answer. @type {number} */
    this.status = problem.status ?? 0;
    /** The run that it is about. @type {string | undefined} */
    this.runId = problem.run_id;
    /** Whether the same request may succeed later. */
    this.transient = transient;
    /** What the server asked to wait. */
    this.retryAfter = retryAfter;
  }
}

/** Server-sent events out of bytes that are cut anywhere, by the rules of the HTML standard. */
export class EventParser {
  #decoder = new TextDecoder(); // drops one BOM, and puts U+FFFD in the place of what is no UTF-8
  #line = "";
  #afterCR = false;
  #type = "";
  /** @type {string[]} */
  #data = [];
  #size = 0;
  /** The last event id that was set, also by an event without data. */
  lastEventId = "";
  #id = "";
  /** The last `retry`. @type {number | undefined} */
  retry = undefined;
  #limit;

  /** @param {number} [limit] characters that one event may have; more raise an OutliveError */
  constructor(limit = Infinity) {
    this.#limit = limit;
  }

  /**
   * The events that these bytes complete.
   * @param {Uint8Array} bytes
   */
  push(bytes) {
    /** @type {{type: string, data: string, id: string}[]} */
    const events = [];
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return events;
    if (this.#afterCR && text[0] === "\n") text = text.slice(1);
    this.#afterCR = text.endsWith("\r");
    let start = 0;
    for (const { 0: end, index } of text.matchAll(/\r\n|\r|\n/g)) {
      const line = this.#line + text.slice(start, index);
      start = index + end.length;
      this.#line = "";
      if (line === "") this.#dispatch(events);
      else this.#field(line);
    }
    this.#line += text.slice(start); // never searched again: an event of 10 MB comes in thousands of pieces
    this.#check();
    return events;
  }

  /** @param {string} line */
  #field(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "event") this.#type = value;
    else if (name === "data") {
      this.#size += value.length + 1;
      this.#data.push(value);
      this.#check();
    } else if (name === "id" && !value.includes("\0")) this.#id = value;
    else if (name === "retry" && /^[0-9]+$/.test(value)) this.retry = Number(value);
  }

  /** @param {{type: string, data: string, id: string}[]} events */
  #dispatch(events) {
    this.lastEventId = this.#id;
    if (this.#data.length > 0) {
      events.push({ type: this.#type || "message", data: this.#data.join("\n"), id: this.#id });
    }
    this.#type = "";
    this.#data = [];
    this.#size = 0;
  }

  #check() {
    if (this.#size + this.#line.length <= this.#limit) return;
    const title = `An event has more than ${this.#limit} characters.`;
    throw new OutliveError({ code: "event_too_large", title, hint: "Raise longestEvent to read it." });
  }
}

/** One transmission: what can cut it, and when something was last heard of it. */
class Connection {
  #controller = new AbortController();
  #silence;
  #opened = performance.now();
  #quietSince = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  signal = this.#controller.signal;
  /** Whether it was worth its while, so that what comes after it is no repeated failure. */
  progress = false;

  /**
   * @param {AbortSignal | undefined} leaving
   * @param {number} silence
   */
  constructor(leaving, silence) {
    this.#silence = silence;
    const until = { signal: this.signal };
    if (leaving?.aborted) this.#controller.abort(leaving.reason);
    leaving?.addEventListener("abort", () => this.#controller.abort(leaving.reason), until);
    globalThis.addEventListener?.("pagehide", () => this.#change("The page was left."), until);
    globalThis.addEventListener?.("online", () => this.#change("The network has changed."), until);
    globalThis.document?.addEventListener("visibilitychange", () => this.#doubt(), until);
    globalThis.document?.addEventListener("resume", () => this.#doubt(), until);
  }

  /**
   * Await it as long as the connection is wanted, whether or not it minds our signal itself.
   * @template T
   * @param {() => T | Promise<T>} work
   * @returns {Promise<T>}
   */
  within(work) {
    return new Promise((resolve, reject) => {
      this.signal.throwIfAborted();
      const over = new AbortController(); // one promise for all of them would keep each of a long stream
      this.signal.addEventListener("abort", () => reject(this.signal.reason), { signal: over.signal });
      Promise.resolve().then(work).then(resolve, reject).finally(() => over.abort());
    });
  }

  /**
   * Await it, but not through more silence than a living server keeps.
   * @template T
   * @param {() => Promise<T>} work
   */
  async heard(work) {
    this.#quietSince = Date.now();
    const silent = () => this.#end(`Nothing was heard for ${this.#silence} ms.`);
    this.#timer = setTimeout(silent, Math.min(this.#silence, LONGEST_TIMER));
    try {
      const result = await this.within(work);
      this.progress ||= performance.now() - this.#opened >= LASTED;
      return result;
    } catch (cause) {
      if (this.signal.aborted) throw this.signal.reason;
      if (cause instanceof OutliveError) throw cause;
      throw new OutliveError({ code: "unreachable", title: "The connection failed." }, { transient: true, cause });
    } finally {
      clearTimeout(this.#timer);
      this.#quietSince = 0;
    }
  }

  close() {
    this.#controller.abort(LEFT);
  }

  /** A page that was asleep: its timers stood still, and perhaps its connection is gone without a word. */
  #doubt() {
    const quiet = this.#quietSince && Math.abs(Date.now() - this.#quietSince);
    if (quiet > this.#silence / 2 && globalThis.document?.visibilityState !== "hidden") this.#change("The page slept.");
  }

  /**
   * What happened to the page is no failure of the server.
   * @param {string} title
   */
  #change(title) {
    this.progress = true;
    this.#end(title);
  }

  /** @param {string} title */
  #end(title) {
    this.#controller.abort(new OutliveError({ code: "cut", title }, { transient: true }));
  }
}

/** Requests and waits that `Outlive` and `Stream` share. */
class Wire {
  /** @param {Options} options */
  constructor(options) {
    this.options = options;
  }

  /** @param {AbortSignal} [leaving] */
  connection(leaving) {
    return new Connection(leaving, this.options.silence);
  }

  /**
   * One request; an answer that is no success is thrown.
   * @param {Connection} connection
   * @param {string} path
   * @param {{method?: string, headers?: Record<string, string>, body?: string}} request
   */
  async send(connection, path, request) {
    const { url, headers: source, credentials, fetch } = this.options;
    const headers = new Headers(await connection.within(() => (typeof source === "function" ? source() : source)));
    for (const [name, value] of Object.entries(request.headers ?? {})) headers.set(name, value);
    const { signal } = connection;
    const init = { ...request, headers, credentials, signal, cache: /** @type {const} */ ("no-store") };
    return connection.heard(async () => {
      const response = await fetch(url + path, init);
      if (!response.ok) throw await refusal(response);
      return response;
    });
  }

  /**
   * A request with a JSON answer, sent again while that may help.
   * @param {string} path
   * @param {{method?: string, headers?: Record<string, string>, body?: string, signal?: AbortSignal}} [more]
   * @returns {Promise<any>}
   */
  async call(path, { signal, headers, ...request } = {}) {
    const asked = { ...request, headers: { Accept: "application/json", ...headers } };
    for (let failures = 1; ; failures += 1) {
      const connection = this.connection(signal);
      try {
        const response = await this.send(connection, path, asked);
        return await this.#json(response, connection);
      } catch (error) {
        if (!(error instanceof OutliveError) || !error.transient || failures >= CALL_TRIES) throw error;
        await this.pause(this.delay(failures, undefined, error), signal, error);
      } finally {
        connection.close();
      }
    }
  }

  /**
   * @param {Response} response
   * @param {Connection} connection
   */
  async #json(response, connection) {
    const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { done, value } = await connection.heard(() => reader.read());
      text += decoder.decode(value, { stream: !done });
      if (!done) continue;
      try {
        return JSON.parse(text);
      } catch (cause) {
        const title = "What answered is not JSON.";
        throw new OutliveError({ code: "no_json", status: response.status, title }, { cause });
      }
    }
  }

  /**
   * How long to wait: from the hint, or what is usual, up to twice that, and twice as much for each failure. It is
   * random, so that the clients of a server that went away do not all come back at once.
   * @param {number} failures
   * @param {number | undefined} hint
   * @param {OutliveError} [error]
   */
  delay(failures, hint, error) {
    const { delay, longestDelay } = this.options;
    const least = Math.max(20, Math.min(hint ?? delay, LONGEST_HINT)); // a hint of 0 must not become a loop
    const most = Math.max(1.25 * least, Math.min(longestDelay, least * 2 ** (failures + 1)));
    const wanted = least + Math.random() * (most - least);
    return Math.max(wanted, (error?.retryAfter ?? 0) * (1 + Math.random() / 4));
  }

  /**
   * Wait; a network or a page that comes back ends it, unless the server itself named a time.
   * @param {number} delay
   * @param {AbortSignal} [signal]
   * @param {OutliveError} [error]
   */
  async pause(delay, signal, error) {
    await happening(delay, error?.retryAfter ? [] : ["online", "pageshow", "visibilitychange"], signal);
    while (away) await happening(undefined, ["pageshow"], signal);
    if (offline()) await happening(this.options.longestDelay, ["online"], signal); // it may be wrong, so try
  }
}

/** One run as its viewer has it: an async iterator over its events, each once, up to and with `end`. */
export class Stream {
  #wire;
  #source;
  #leaving = new AbortController();
  #events;
  /** The last event that was taken; null while the first one may be any. @type {number | null} */
  #seq;
  #epoch = 0;
  /** Whether the run was replaced by the one that continues it. */
  #continued = false;
  #opened = false;
  #over = false;
  /** @type {number | null | undefined} */
  #damagedAt;
  /** @type {number | undefined} */
  #hint;
  /** The run's id; "" until the server has named it. */
  id;
  /** How the submit came to be this run, if there was one: created, attached, replayed, continued. */
  admitted = "";

  /**
   * @param {Wire} wire
   * @param {Source} source
   */
  constructor(wire, source) {
    this.#wire = wire;
    this.#source = source;
    this.#seq = source.seq ?? null;
    this.id = source.run ?? "";
    this.#events = this.#follow();
    const { signal } = source;
    if (signal?.aborted) this.#leaving.abort(signal.reason);
    signal?.addEventListener("abort", () => this.#leaving.abort(signal.reason), { signal: this.#leaving.signal });
  }

  /** The id of the last event that was taken: where `follow` goes on. Keep it with what you show. */
  get cursor() {
    return this.#seq ? `${this.id}:${this.#seq}` : "";
  }

  /** Ask the server to stop the run. Its `end` still comes. */
  stop() {
    return this.#wire.call(`${path(this.id)}/stop`, { method: "POST" });
  }

  /**
   * Read the run's record.
   * @returns {Promise<RunRecord>}
   */
  read() {
    return this.#wire.call(path(this.id));
  }

  /** Close the connection and end the iteration. The run goes on, unless its policy is to end with its viewers. */
  async leave() {
    this.#leaving.abort(LEFT);
    await this.#events.return(undefined);
  }

  /**
   * Call a handler for each event, one after the other, and return the `end`: null if the iteration ended without.
   * @param {Handlers} handlers
   * @returns {Promise<RunEvent | null>}
   */
  async each(handlers) {
    for await (const event of this) {
      if (Object.hasOwn(handlers, event.type)) await handlers[event.type]?.(event); // not every object's toString
      if (event.type === "end") return event;
    }
    return null;
  }

  /** Wait until the server has answered, or refused. */
  async opened() {
    await this.#events.next();
    return this;
  }

  /** @returns {AsyncIterator<RunEvent, undefined>} */
  [Symbol.asyncIterator]() {
    return {
      next: async () => {
        let step = await this.#events.next();
        if (step.value === null) step = await this.#events.next();
        return /** @type {IteratorResult<RunEvent, undefined>} */ (step);
      },
      return: async () => {
        await this.leave();
        return { done: true, value: undefined };
      },
    };
  }

  /** @param {Condition} now */
  #tell(now) {
    this.#source.onConnection?.(now);
  }

  /** @returns {AsyncGenerator<RunEvent | null, undefined>} null when it is open for the first time */
  async *#follow() {
    const { signal } = this.#leaving;
    let failures = 0;
    try {
      if (offline()) this.#tell({ state: "waiting" });
      await this.#wire.pause(0, signal);
      while (!this.#over) {
        let error = new OutliveError({ code: "interrupted", title: "The stream ended too soon." }, { transient: true });
        const connection = this.#wire.connection(signal);
        try {
          yield* this.#transmission(connection);
        } catch (caught) {
          if (!(caught instanceof OutliveError && caught.transient)) throw caught;
          error = caught;
        } finally {
          connection.close();
        }
        if (this.#over) break;
        if (connection.progress) failures = 0;
        else if (!offline()) failures += 1;
        if (failures > this.#wire.options.retries) throw error;
        const delay = this.#wire.delay(failures, this.#hint, error);
        this.#tell({ state: "waiting", delay, error });
        await this.#wire.pause(delay, signal, error);
      }
    } catch (error) {
      if (error !== LEFT) throw error;
    } finally {
      this.#leaving.abort(LEFT);
      this.#tell({ state: "closed" });
    }
  }

  /**
   * What one connection brings.
   * @param {Connection} connection
   * @returns {AsyncGenerator<RunEvent | null, void>}
   */
  async *#transmission(connection) {
    this.#tell({ state: "connecting" });
    let response;
    try {
      response = await this.#connect(connection);
    } catch (error) {
      const gap = this.#skipped(error);
      if (!gap) throw error;
      yield gap;
      return yield* this.#transmission(connection);
    }
    this.#tell({ state: "open" });
    if (!this.#opened) yield null;
    this.#opened = true;
    if (response.status === 204) return this.#end(false);
    for await (const event of this.#read(response, connection)) {
      connection.progress = true;
      if (event.type === "end") this.#end(CUT_OFF.includes(event.data?.reason));
      yield event;
      if (this.#over) return;
      this.#leaving.signal.throwIfAborted();
    }
  }

  /** @param {boolean} cutOff */
  #end(cutOff) {
    this.#over = true;
    this.#source.ended?.(cutOff);
  }

  /** @param {Connection} connection */
  async #connect(connection) {
    const { key = "", body, to, after } = this.#source;
    const cursor = this.cursor || after;
    const headers = { Accept: "text/event-stream", ...(cursor && { "Last-Event-ID": cursor }) };
    const submit = { ...headers, "Content-Type": "application/json", "Idempotency-Key": key };
    const response =
      this.id && to === undefined
        ? await this.#wire.send(connection, `${path(this.id)}/events`, { headers })
        : await this.#wire.send(connection, to ?? "/runs", { method: "POST", headers: submit, body });
    const named = response.headers.get("Outlive-Run") ?? "";
    if (to !== undefined && this.id && named && named !== this.id) {
      [this.id, this.#seq, this.#epoch, this.#continued] = ["", null, 0, true];
    }
    this.id ||= named;
    this.admitted ||= response.headers.get("Outlive-Admitted") ?? "";
    const type = response.headers.get("Content-Type") ?? "";
    if (response.status === 204 || /^text\/event-stream\s*(;|$)/i.test(type)) return response;
    const title = `What answered is no stream of events, but ${type || "of no type"}.`;
    throw new OutliveError({ code: "no_stream", status: response.status, title });
  }

  /**
   * @param {Response} response
   * @param {Connection} connection
   * @returns {AsyncGenerator<RunEvent, void>}
   */
  async *#read(response, connection) {
    const parser = new EventParser(this.#wire.options.longestEvent);
    const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
    for (;;) {
      const { done, value } = await connection.heard(() => reader.read());
      if (done) return;
      const events = parser.push(value);
      this.#hint = parser.retry ?? this.#hint;
      for (const raw of events) {
        const event = this.#take(raw);
        if (event) yield await this.#whole(event);
      }
    }
  }

  /**
   * A large event travels as a reference to its body, which is fetched before the event counts as taken.
   * @param {RunEvent} event
   * @returns {Promise<RunEvent>}
   */
  async #whole(event) {
    const { data, seq } = event;
    if (data?.$outlive !== "stored" || typeof data.ref !== "string") return event;
    try {
      const { data: body } = await this.#wire.call(data.ref, { signal: this.#leaving.signal });
      return { ...event, data: body };
    } catch (error) {
      this.#seq = seq - 1;
      throw error;
    }
  }

  /**
   * What an event is for us: nothing if it was here before, or is of an executor that was replaced.
   * @param {{type: string, data: string, id: string}} raw
   * @returns {RunEvent | null}
   */
  #take({ type, data, id }) {
    if (type === "error") throw new OutliveError(this.#parse(data), { transient: true });
    if (id === "") return null;
    const [, run = this.id, digits] = /^(?:([^:]*):)?([0-9]+)$/.exec(id) ?? [];
    const seq = Number(digits);
    if (!digits || (this.id && run !== this.id)) throw this.#damaged(`It has an event ${id}.`);
    this.id = run;
    if (this.#seq !== null && seq <= this.#seq) return null;
    if (this.#seq !== null && seq > this.#seq + 1) throw this.#damaged(`Event ${seq} came after ${this.#seq}.`);
    const said = this.#parse(data);
    this.#seq = seq;
    if (type === "attempt") this.#epoch = said.epoch;
    if (type === "chunk" && said.epoch < this.#epoch) return null;
    const known = /** @type {EventType} */ (type === "attempt" && (seq > 1 || this.#continued) ? "restart" : type);
    return { type: known, id, seq, epoch: said.epoch, mode: said.mode ?? null, data: said.data };
  }

  /** @param {string} data */
  #parse(data) {
    try {
      const said = JSON.parse(data);
      if (typeof said === "object" && said !== null) return said;
    } catch {
      // said below
    }
    throw this.#damaged("An event is not JSON.");
  }

  /**
   * Perhaps only this transmission is bad; the same again at the same place is a fault that would never end.
   * @param {string} title
   */
  #damaged(title) {
    const transient = this.#damagedAt !== this.#seq;
    this.#damagedAt = this.#seq;
    const problem = { code: "damaged", title: `The stream is damaged. ${title}`, run_id: this.id };
    return new OutliveError(problem, { transient });
  }

  /**
   * The gap that a cursor behind the retention leaves, if the caller wants to go on after it.
   * @param {unknown} error
   * @returns {RunEvent | null}
   */
  #skipped(error) {
    if (!(error instanceof OutliveError) || error.status !== 410 || this.#source.gaps !== "skip") return null;
    const { problem } = error;
    const seq = problem.oldest - 1;
    if (!(seq > (this.#seq ?? 0))) return null;
    this.#seq = seq;
    return { type: "gap", id: this.cursor, seq, epoch: this.#epoch, mode: null, data: problem };
  }
}

/** The client of one server. */
export class Outlive {
  #wire;
  /** What is known of intents whose runs have not ended. @type {Map<string, string>} */
  #intents = new Map();

  /**
   * `url` is where the router is: the page's origin unless given. `headers` are sent with each request; a function
   * is asked each time, so that a token can be new. `silence` is how long a connection may say nothing; `delay` and
   * `longestDelay` bound the waits between tries; `retries` is how often in a row a stream may fail to get anywhere.
   * `longestEvent` is in characters.
   * @param {Partial<Options>} [options]
   */
  constructor(options = {}) {
    const url = new URL(options.url ?? "/", globalThis.location?.href).href.replace(/\/+$/, "");
    this.#wire = new Wire({
      headers: {},
      credentials: "same-origin",
      fetch: (...request) => globalThis.fetch(...request),
      storage: sessionStore(),
      silence: 45_000,
      delay: 500,
      longestDelay: 30_000,
      retries: 20,
      longestEvent: 64 * 1024 * 1024,
      ...options,
      url,
    });
  }

  /**
   * Submit a run and follow it. It returns once the server has answered, and throws what it refused.
   * @overload
   * @param {NewRun} request
   * @param {Submitting & {to?: undefined}} [options]
   * @returns {Promise<Stream>}
   */
  /**
   * The same by a handler of one's own, which submits what it is sent and returns the stream.
   * @overload
   * @param {unknown} request
   * @param {Submitting & {to: string}} options
   * @returns {Promise<Stream>}
   */
  /**
   * @param {unknown} request
   * @param {Submitting} [options]
   */
  async start(request, { intent, key, to, ...watching } = {}) {
    const made = this.#keep(intent, { key: key ?? "", body: JSON.stringify(request), to });
    return this.#post(intent, made, watching);
  }

  /**
   * @param {string | undefined} intent
   * @param {Intent} made
   * @param {Watching & {after?: string}} watching
   */
  async #post(intent, made, watching) {
    const forget = () => this.#forget(intent, made.key);
    const ended = (/** @type {boolean} */ cutOff) => cutOff || forget();
    try {
      return await new Stream(this.#wire, { ...watching, ...made, ended }).opened();
    } catch (error) {
      if (refused(error)) forget();
      throw error;
    }
  }

  /**
   * Go on with what `start` began under this intent, also after a reload; null if nothing is under way. The run comes
   * from its first event, or after `after`, if that is a cursor of it.
   * @param {string} intent
   * @param {Watching & {after?: string}} [options]
   */
  async resume(intent, { after = "", ...watching } = {}) {
    const kept = this.#kept(intent);
    if (kept === null) return null;
    if (kept.to !== undefined) return this.#post(intent, kept, { ...watching, after });
    const forget = () => this.#forget(intent, kept.key);
    const again = this.submit(JSON.parse(kept.body), { key: kept.key, signal: watching.signal });
    const { run_id: run, admitted } = await again.catch((error) => {
      if (refused(error)) forget();
      throw error;
    });
    const seq = after.startsWith(`${run}:`) ? position(after, run) : 0;
    const ended = (/** @type {boolean} */ cutOff) => cutOff || forget();
    const stream = new Stream(this.#wire, { ...watching, run, seq, ended });
    stream.admitted = admitted;
    return stream.opened();
  }

  /**
   * Submit a run without watching it; returns its record.
   * @param {NewRun} request
   * @param {{key?: string, signal?: AbortSignal}} [options]
   * @returns {Promise<RunRecord & {admitted: string}>}
   */
  submit(request, { key = newKey(), signal } = {}) {
    const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
    return this.#wire.call("/runs", { method: "POST", headers, body: JSON.stringify(request), signal });
  }

  /**
   * Follow a run from its first event, or after a cursor. It connects when it is iterated.
   * @param {string} run
   * @param {Watching & {after?: string | number}} [options]
   */
  follow(run, { after = 0, ...watching } = {}) {
    return new Stream(this.#wire, { ...watching, run, seq: position(after, run) });
  }

  /**
   * @param {string} run
   * @returns {Promise<RunRecord>}
   */
  read(run) {
    return this.#wire.call(path(run));
  }

  /**
   * Ask a run to stop.
   * @param {string} run
   * @returns {Promise<{outcome: "stopped" | "requested" | "already", run: RunRecord}>}
   */
  stop(run) {
    return this.#wire.call(`${path(run)}/stop`, { method: "POST" });
  }

  /**
   * Runs, newest first; `before` of the answer is for the next page.
   * @param {{agent?: string, state?: string, thread?: string, limit?: number, before?: string}} [query]
   * @returns {Promise<{runs: RunRecord[], before: string | null}>}
   */
  list(query = {}) {
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
    return this.#wire.call(`/runs?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`);
  }

  /**
   * A thread: its live runs and its newest runs.
   * @param {string} name
   * @returns {Promise<{thread: string, live: string[], runs: RunRecord[], last_seq: number, created_at: number}>}
   */
  thread(name) {
    return this.#wire.call(`/threads/${encodeURIComponent(name)}`);
  }

  /**
   * Give it a key: the one that was kept if it is the same request, so that a second click is no second run.
   * @param {string | undefined} intent
   * @param {Intent} made
   */
  #keep(intent, made) {
    const kept = intent === undefined ? null : this.#kept(intent);
    const same = kept !== null && kept.body === made.body && kept.to === made.to;
    const keyed = { ...made, key: made.key || (same ? kept.key : newKey()) };
    if (intent === undefined) return keyed;
    const text = JSON.stringify(keyed);
    this.#intents.set(intent, text);
    try {
      this.#wire.options.storage?.setItem(this.#place(intent), text);
    } catch {
      // The storage is full: the key holds as long as this object, as the documentation says.
    }
    return keyed;
  }

  /**
   * @param {string} intent
   * @returns {Intent | null}
   */
  #kept(intent) {
    try {
      const text = this.#intents.get(intent) ?? this.#wire.options.storage?.getItem(this.#place(intent));
      const { key, body, to } = JSON.parse(text ?? "{}");
      return typeof key === "string" && typeof body === "string" ? { key, body, to } : null;
    } catch {
      return null; // somebody else wrote there
    }
  }

  /**
   * Unless something else was begun under the intent since then.
   * @param {string | undefined} intent
   * @param {string} key
   */
  #forget(intent, key) {
    if (intent === undefined || this.#kept(intent)?.key !== key) return;
    this.#intents.delete(intent);
    this.#wire.options.storage?.removeItem(this.#place(intent));
  }

  /** @param {string} intent */
  #place(intent) {
    return `outlive:${this.#wire.options.url}:${intent}`;
  }
}

/**
 * @param {Response} response
 * @returns {Promise<OutliveError>}
 */
async function refusal(response) {
  const { status, headers } = response;
  const transient = status >= 500 || [408, 425, 429].includes(status);
  let said = null;
  try {
    if (/json/i.test(headers.get("Content-Type") ?? "")) said = await response.json();
  } catch {
    // Half an answer: the status says enough.
  }
  const problem = { code: `http_${status}`, title: `The server answered ${status}.`, ...Object(said), status };
  return new OutliveError(problem, { transient, retryAfter: retryAfter(headers) });
}

/**
 * Whether the server will never make a run of it. Who is not logged in may come back.
 * @param {unknown} error
 */
function refused(error) {
  return error instanceof OutliveError && !error.transient && ![401, 403].includes(error.status);
}

/** @param {Headers} headers  of which a date is measured against the server's own clock, if it is shown */
function retryAfter(headers) {
  const text = headers.get("Retry-After")?.trim();
  if (!text) return undefined;
  const sent = Date.parse(headers.get("Date") ?? "") || Date.now();
  const wait = /^[0-9]+$/.test(text) ? Number(text) * 1000 : Date.parse(text) - sent;
  return wait > 0 ? Math.min(wait, LONGEST_HINT) : undefined;
}

/**
 * After so long, or when one of these happens to the page; or throw why the signal was aborted.
 * @param {number | undefined} delay
 * @param {string[]} names
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
function happening(delay, names, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const over = new AbortController();
    const timer = delay === undefined ? undefined : setTimeout(() => finish(resolve), Math.min(delay, LONGEST_TIMER));
    const finish = (/** @type {() => void} */ then) => {
      clearTimeout(timer);
      over.abort();
      then();
    };
    signal?.addEventListener("abort", () => finish(() => reject(signal.reason)), { signal: over.signal });
    const hidden = () => globalThis.document?.visibilityState === "hidden";
    const woken = (/** @type {Event} */ { type }) => (type === "visibilitychange" && hidden()) || finish(resolve);
    for (const name of names) globalThis.addEventListener?.(name, woken, { signal: over.signal });
  });
}

function offline() {
  return globalThis.navigator?.onLine === false;
}

/** @param {string} run */
function path(run) {
  return `/runs/${encodeURIComponent(run)}`;
}

/**
 * @param {string | number} cursor
 * @param {string} run
 */
function position(cursor, run) {
  const [, named = run, digits] = /^(?:([^:]*):)?([0-9]+)$/.exec(String(cursor || 0)) ?? [];
  if (digits && named === run) return Number(digits);
  throw new OutliveError({ code: "invalid_cursor", title: `${cursor} is no cursor of this run.`, run_id: run });
}

/** Random also where the page is not secure and `randomUUID` is not there. */
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The page's session storage; there is none outside of pages, and in some frames it is forbidden. */
function sessionStore() {
  try {
    return globalThis.sessionStorage ?? null;
  } catch {
    return null;
  }
}
