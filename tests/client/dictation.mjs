/** What a dictated agent says: each of its attempts is a connection to here. */
import { once } from "node:events";
import net from "node:net";
import readline from "node:readline";

export const WITHIN = 40_000;

/** Await it, but not for ever. */
export async function within(promise, what, limit = WITHIN) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited too long for ${what}`)), limit);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export class Dictation {
  #server = net.createServer((socket) => this.#arrived(socket));
  #attempts = [];
  #asked = [];

  static async open() {
    const made = new Dictation();
    made.#server.listen(0, "127.0.0.1");
    await once(made.#server, "listening");
    return made;
  }

  get port() {
    return this.#server.address().port;
  }

  /** The next attempt that connects. */
  attempt() {
    const { promise, resolve } = withResolvers();
    if (this.#attempts.length > 0) resolve(this.#attempts.shift());
    else this.#asked.push(resolve);
    return within(promise, "an attempt");
  }

  close() {
    this.#server.close();
    for (const { socket } of this.#attempts) socket.destroy();
  }

  async #arrived(socket) {
    socket.on("error", () => {}); // its process was killed
    const [line] = await once(readline.createInterface(socket), "line");
    const [run, attempt] = JSON.parse(line);
    const arrived = { socket, run, attempt, left: once(socket, "close"), say, end: () => socket.end() };
    if (this.#asked.length > 0) this.#asked.shift()(arrived);
    else this.#attempts.push(arrived);
  }
}

function say(...values) {
  this.socket.write(values.map((value) => `${JSON.stringify(value)}\n`).join(""));
}

export function withResolvers() {
  let resolve, reject;
  const promise = new Promise((...both) => ([resolve, reject] = both));
  return { promise, resolve, reject };
}
