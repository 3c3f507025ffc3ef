/** A proxy between a client and a server which cuts connections, refuses them, or comes back. */
import { once } from "node:events";
import net from "node:net";
import { within } from "../../client/dictation.mjs";

export class Cutting {
  #server = net.createServer((client) => this.#arrived(client));
  #sockets = new Set();
  #target;
  #refused = () => {};
  #cutting = () => {};
  /** After how many bytes of an answer a connection is cut, and how often that happens. */
  bytes = Infinity;
  times = Infinity;
  /** After how many milliseconds a connection is cut. */
  every = null;
  /** How many connections were cut. */
  cuts = 0;
  online = true;
  /** Told of each request: its method, its path, and where it wants a stream to go on. */
  onRequest = () => {};

  static async open(target, options = {}) {
    const made = Object.assign(new Cutting(), options);
    made.#target = new URL(target);
    made.#server.listen(0, "127.0.0.1");
    await once(made.#server, "listening");
    return made;
  }

  get url() {
    return `http://127.0.0.1:${this.#server.address().port}`;
  }

  /** From now on, cut each connection after some milliseconds. */
  begin(every) {
    this.every = every;
    this.cut();
  }

  /** Cut what is open, and let nobody in. */
  away() {
    this.online = false;
    this.cut();
  }

  /** Cut what is open and let nobody in, until some have tried to come back. */
  async offline(tries = 2) {
    this.away();
    await within(new Promise((resolve) => (this.#refused = () => (tries -= 1) || resolve())), "clients to come back");
    this.online = true;
  }

  /** Wait for another cut. */
  another() {
    return within(new Promise((resolve) => (this.#cutting = resolve)), "a cut");
  }

  /** Cut what is open. */
  cut() {
    for (const socket of this.#sockets) this.#cut(socket);
  }

  close() {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #cut(client) {
    this.cuts += 1;
    client.resetAndDestroy();
    this.#cutting();
  }

  #heard(text) {
    const [, method, path] = /^(GET|POST) (\S+) HTTP/.exec(text) ?? [];
    if (method) this.onRequest(method, path, /^last-event-id: (\S+)/im.exec(text)?.[1]);
  }

  #arrived(client) {
    client.on("error", () => {});
    if (!this.online) {
      client.resetAndDestroy();
      return this.#refused();
    }
    const server = net.connect(this.#target.port, "127.0.0.1");
    this.#sockets.add(client);
    let sent = 0;
    const timer = this.every === null ? undefined : setTimeout(() => this.#cut(client), this.every);
    client.on("close", () => {
      this.#sockets.delete(client);
      clearTimeout(timer);
      server.destroy();
    });
    server.on("error", () => {}).on("close", () => client.destroy());
    client.on("data", (piece) => this.#heard(piece.toString("latin1"))).pipe(server);
    server.on("data", (piece) => {
      const cut = sent + piece.length >= this.bytes && this.cuts < this.times;
      client.write(cut ? piece.subarray(0, Math.max(0, this.bytes - sent)) : piece, () => cut && this.#cut(client));
      sent += piece.length;
    });
  }
}
