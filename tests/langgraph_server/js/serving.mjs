/** `outlive serve --config langgraph.json` on a database of its own unless one is named, and what its graphs have done. */
import fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { Serving } from "../../client/serving.mjs";

const CONFIG = new URL("langgraph.json", import.meta.url).pathname;

export class Served extends Serving {
  directory = "";

  static async open() {
    const directory = await fs.mkdtemp(path.join(os.tmpdir(), "outlive-langgraph-"));
    const database = process.env.DATABASE ?? `sqlite:///${directory}/outlive.db`;
    const serve = (port) => ["-m", "outlive", "serve", "--config", CONFIG, "--database", database,
      "--port", port, "--lease", "2"];
    const made = new Served(directory, serve);
    made.directory = directory;
    return made.begin();
  }

  /** Which nodes were executed on a thread, in their order. */
  async executed(thread) {
    const text = await fs.readFile(path.join(this.directory, "effects.jsonl"), "utf8").catch(() => "");
    const lines = text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
    return lines.filter(([of]) => of === thread).map(([, node]) => node);
  }
}
