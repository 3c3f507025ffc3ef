/** Real servers in processes of their own, which can be killed and come back on the same port. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { within } from "./dictation.mjs";

const HERE = import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname);

export class Serving {
  #arguments;
  #process;
  #directory;
  url = "";
  said = "";

  constructor(directory, args) {
    this.#directory = directory;
    this.#arguments = args;
  }

  /** `outlive serve` on a database of its own. */
  static async outlive() {
    const directory = await fs.mkdtemp(path.join(os.tmpdir(), "outlive-client-"));
    const serve = (port) => ["-m", "outlive", "serve", "dictated:agents", "--database",
      `sqlite:///${directory}/outlive.db`, "--port", port, "--lease", "2"];
    return new Serving(directory, serve).begin();
  }

  /** The application of the documentation. */
  static async application(files) {
    const directory = await fs.mkdtemp(path.join(os.tmpdir(), "outlive-client-"));
    for (const [name, text] of Object.entries(files)) await fs.writeFile(path.join(directory, name), text);
    const serve = (port) => ["-m", "uvicorn", "browser_app:app", "--port", port, "--timeout-graceful-shutdown", "1"];
    return new Serving(directory, serve).begin();
  }

  async begin() {
    const port = this.url ? new URL(this.url).port : "0";
    const PYTHONPATH = [HERE, this.#directory, process.env.PYTHONPATH].filter(Boolean).join(path.delimiter);
    const env = { ...process.env, PYTHONPATH, PYTHONUNBUFFERED: "1" };
    this.said = "";
    const options = { cwd: this.#directory, env, stdio: ["ignore", "pipe", "pipe"] };
    this.#process = spawn(process.env.PYTHON ?? "python3", this.#arguments(port), options);
    const listens = new Promise((resolve, reject) => {
      const heard = (text) => {
        this.said += text;
        const found = /(?:listening|running) on (http:\/\/[\d.:]+)/.exec(this.said);
        if (found) resolve(found[1]);
      };
      for (const output of [this.#process.stdout, this.#process.stderr]) output.setEncoding("utf8").on("data", heard);
      this.#process.once("exit", () => reject(new Error(`the server ended:\n${this.said}`)));
    });
    listens.catch(() => {}); // after it has listened, an exit is nobody's surprise
    this.url = await within(listens, "a server");
    return this;
  }

  /** End it by a signal, and wait until it is gone. */
  async end(signal) {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const gone = once(this.#process, "exit");
    this.#process.kill(signal);
    await within(gone, "the end of a server");
  }

  async close() {
    await this.end("SIGKILL");
    await fs.rm(this.#directory, { recursive: true });
  }
}
