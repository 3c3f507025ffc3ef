/** A server on a plain socket that has the log of one run, and does to each request what a test tells it. */
import { once } from "node:events";
import net from "node:net";

export const RUN = "0123456789abcdef0123456789abcdef";

/** One event as the server writes it. */
export function frame(seq, type, data, { epoch = 1, mode = null, run = RUN } = {}) {
  return `event: ${type}\ndata: ${JSON.stringify({ epoch, mode, data })}\nid: ${run}:${seq}\n\n`;
}

/** The log of a run that succeeds: an attempt, these chunks, the end. */
export function log(chunks) {
  const end = { state: "succeeded", reason: null, error: null, closed: true };
  return [
    frame(1, "attempt", { epoch: 1 }),
    ...chunks.map((chunk, at) => frame(at + 2, "chunk", chunk)),
    frame(chunks.length + 2, "end", end),
  ];
}

export class Misbehaving {
  #server = net.createServer((socket) => this.#arrived(socket));
  #sockets = new Set();
  #asked = new Set();
  /** Every request so far: its method, path, headers and body. */
  requests = [];

  constructor(frames, faults = []) {
    this.frames = frames;
    /** What is done to the next requests, instead of what is right. */
    this.faults = faults;
  }

  static async open(frames, faults) {
    const made = new Misbehaving(frames, faults);
    made.#server.listen(0, "127.0.0.1");
    await once(made.#server, "listening");
    return made;
  }

  get url() {
    return `http://127.0.0.1:${this.#server.address().port}`;
  }

  close() {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  /** How many connections are open that a request came over: Node opens some more by itself. */
  get open() {
    return this.#asked.size;
  }

  #arrived(socket) {
    this.#sockets.add(socket);
    socket.on("error", () => {}).on("close", () => [this.#sockets, this.#asked].map((open) => open.delete(socket)));
    let text = "";
    socket.setEncoding("utf8").on("data", (piece) => {
      text += piece;
      const request = parsed(text);
      if (request === null) return;
      text = "";
      this.requests.push(request);
      this.#asked.add(socket);
      (this.faults.shift() ?? right)(socket, this.frames, request);
    });
  }
}

function parsed(text) {
  const [head, body] = text.split("\r\n\r\n");
  const [line, ...lines] = head.split("\r\n");
  const headers = Object.fromEntries(lines.map((each) => each.toLowerCase().split(": ")));
  if (body === undefined || Buffer.byteLength(body) < Number(headers["content-length"] ?? 0)) return null;
  const [method, path] = line.split(" ");
  return { method, path, headers, body };
}

const after = ({ headers }) => Number((headers["last-event-id"] ?? ":0").split(":")[1]);

export const HEAD = [
  "HTTP/1.1 200 OK",
  "Content-Type: text/event-stream; charset=utf-8",
  `Outlive-Run: ${RUN}`,
  "Outlive-Admitted: created",
  "Connection: close",
  "",
].join("\r\n");

/** What a server does that means well: the events after the cursor, and nothing after the last one. */
export function right(socket, frames, request) {
  const rest = frames.slice(after(request));
  socket.end(rest.length > 0 ? `${HEAD}\r\n${rest.join("")}` : "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
}

/** Exactly this text. */
export const says = (text) => (socket) => socket.end(text);

/** An answer with a status, and perhaps a body. */
export function answers(status, headers = {}, body = "") {
  const given = { "Content-Length": Buffer.byteLength(body), Connection: "close", ...headers };
  const lines = Object.entries(given).map(([name, value]) => `${name}: ${value}\r\n`);
  return says(`HTTP/1.1 ${status} Whatever\r\n${lines.join("")}\r\n${body}`);
}

export function problem(status, code, more = {}) {
  const body = JSON.stringify({ type: `urn:outlive:${code}`, code, title: "No.", status, hint: "Do so.", ...more });
  return answers(status, { "Content-Type": "application/problem+json" }, body);
}

/** The right bytes up to some place, and then this end of the connection. */
export function cut(at, how) {
  return async (socket, frames, request) => {
    const rest = Buffer.from(frames.slice(after(request)).join(""));
    const part = rest.subarray(0, Math.min(at, rest.length));
    const chunked = how === "torn";
    const head = chunked ? HEAD.replace("Connection: close", "Transfer-Encoding: chunked") : HEAD;
    const body = chunked ? Buffer.concat([Buffer.from(`${(part.length + 10).toString(16)}\r\n`), part]) : part;
    await new Promise((sent) => socket.write(Buffer.concat([Buffer.from(`${head}\r\n`), body]), sent));
    ENDS[how](socket);
  };
}

export const ENDS = {
  closed: (socket) => socket.end(),
  torn: (socket) => socket.destroy(),
  reset: (socket) => socket.resetAndDestroy(),
  silent: () => {},
};
