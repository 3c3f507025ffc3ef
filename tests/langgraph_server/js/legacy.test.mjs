/** The hook of `@langchain/langgraph-sdk/react`. */
import "./page.mjs";
import assert from "node:assert/strict";
import { test } from "node:test";
import { within } from "../../client/dictation.mjs";
import { WHOLE, WORDS, dictate, ends, scenarios } from "./scenarios.mjs";

const { useStream } = await import("@langchain/langgraph-sdk/react");

const hook = {
  use: useStream,
  options: { fetchStateHistory: true, reconnectOnMount: true },
  impatient: { callerOptions: { maxRetries: 0 } },
  cuts: { "every connection after some bytes": { bytes: 2000 }, "every second": { every: 1000 } },
  resume: (stream, resume) => stream.submit(undefined, { command: { resume } }),
  fork: (stream, input, checkpoint) => stream.submit(input, { checkpoint }),
};

scenarios("the hook of the SDK", hook, (staged) => {
  const set = (t) => staged(t, { use: useStream, options: {} });

  test("without options its runs are tied to their page, which a cut leaves but for a moment", async (t) => {
    const stage = await set(t);
    const page = await stage.ready();
    const [submitted, agent] = await stage.ask(page);
    for (const word of WORDS) {
      await dictate(page, agent, [word]);
      if (word === WORDS[1]) stage.proxy.cut();
    }
    agent.end();
    await ends(page, WHOLE, submitted);
    await stage.executed(["charge", "model"]);
  });

  test("without options its runs stop when their page stops or is gone for longer than their grace", async (t) => {
    t.mock.method(console, "error", () => {});
    const stage = await set(t);
    const page = await stage.ready({ defaultHeaders: { "Outlive-Grace": "0.1" } });
    const [submitted, agent] = await stage.ask(page);
    await dictate(page, agent, WORDS.slice(0, 2));
    await within(Promise.all([page.stream.stop(), submitted, agent.left]), "the stop");
    await stage.executed(["charge"]);
  });

  test("a page that names a run can follow it anew", async (t) => {
    const stage = await set(t);
    const page = await stage.ready();
    page.stream.submit({ messages: [{ type: "human", content: "hello" }], port: stage.dictation.port },
      { onDisconnect: "continue" });
    const agent = await stage.dictation.attempt();
    await dictate(page, agent, WORDS.slice(0, 2));
    const [run] = await page.stream.client.runs.list(stage.thread);
    page.unmount();
    const other = await stage.ready();
    const joined = other.stream.joinStream(run.run_id);
    await other.until((_, shown) => shown.at(-1) === "one two ", "what was said before");
    await dictate(other, agent, WORDS.slice(2));
    agent.end();
    await ends(other, WHOLE, joined);
    assert.equal((await other.stream.client.runs.get(stage.thread, run.run_id)).status, "success");
    await stage.executed(["charge", "model"]);
  });
});
