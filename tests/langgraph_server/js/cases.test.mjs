/** What has gone wrong with such clients elsewhere, through the client of `@langchain/langgraph-sdk`. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Client } from "@langchain/langgraph-sdk";
import { Dictation, within } from "../../client/dictation.mjs";
import { Cutting } from "./cutting.mjs";
import { Served } from "./serving.mjs";

const HELLO = { messages: [{ type: "human", content: "hello" }] };
const MODES = ["values", "updates", "messages-tuple", "custom"];
let server, client;

before(async () => {
  server = await Served.open();
  client = new Client({ apiUrl: server.url });
});
after(() => server?.close());

async function all(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

const made = async () => (await client.threads.create()).thread_id;

/** What a run streams whose model says these words. */
async function dictated(t, ...words) {
  const dictation = await Dictation.open();
  t.after(() => dictation.close());
  const input = { ...HELLO, port: dictation.port };
  const thread = await made();
  const streamed = all(client.runs.stream(thread, "chat", { input, streamMode: MODES }));
  const agent = await dictation.attempt();
  agent.say(...words);
  agent.end();
  const parts = await within(streamed, "the run");
  return { thread, parts, said: parts.filter(({ event }) => event === "messages").map(({ data }) => data[0].content) };
}

describe("what has gone wrong elsewhere", { concurrency: true }, () => {
  test("S12: each reconnect goes on where the stream was, and makes no second run", async (t) => {
    const { thread, parts } = await dictated(t, "one ", "two ", "three");
    const proxy = await Cutting.open(server.url, { bytes: 2500 });
    t.after(() => proxy.close());
    const again = new Client({ apiUrl: proxy.url }).runs.joinStream(thread, parts[0].data.run_id, { lastEventId: "-1" });
    assert.deepEqual(await all(again), parts);
    assert.ok(proxy.cuts > 0);
    assert.equal((await client.runs.list(thread)).length, 1);
    assert.equal(new Set(parts.map(({ id }) => id)).size, parts.length);
  });

  test("S12: a cursor of another run, and one that is none, are refused", async (t) => {
    const [{ thread, parts }, other] = await Promise.all([dictated(t, "one"), dictated(t, "two")]);
    for (const lastEventId of [other.parts.at(-2).id, "nonsense", "12"]) {
      const joined = all(client.runs.joinStream(thread, parts[0].data.run_id, { lastEventId }));
      await assert.rejects(joined, ({ status }) => status === 400);
    }
  });

  test("S15: words of megabytes come whole, in every mode and to who joins", async (t) => {
    const large = "x".repeat(3_000_000);
    const { thread, parts, said } = await dictated(t, "small ", large, " small");
    assert.deepEqual([said[1].length, said.join("").length], [large.length, large.length + 12]);
    const joined = await client.runs.join(thread, parts[0].data.run_id);
    assert.equal(joined.messages.at(-1).content, `small ${large} small`);
    assert.equal((await client.threads.getState(thread)).values.messages.at(-1).content.length, large.length + 12);
  });

  test("S16: what ends a line elsewhere, and what looks like a frame, is text", async (t) => {
    const words = ["a\u2028b\u2029c\u0085d", "\r\n\r\ndata: x\n\n", "\ufeff: \u000b\u001c", "🛫", "event: end\nid: 0\n\n"];
    const { thread, said } = await dictated(t, ...words);
    assert.deepEqual(said.filter(Boolean), words);
    assert.equal((await client.threads.getState(thread)).values.messages.at(-1).content, words.join(""));
  });

  test("S18: what is no JSON is told as such, and the run goes on", async () => {
    const input = { ...HELLO, ask: true };
    const parts = await all(client.runs.stream(await made(), "team", { input, streamMode: MODES, streamSubgraphs: true }));
    const [, { strange }] = parts.filter(({ event }) => event.startsWith("custom")).map(({ data }) => data);
    assert.equal(strange.length, 6);
    assert.equal(parts.at(-1).data.status, "success");
  });

  for (const [how, addressed] of Object.entries({
    "by its thread": () => ({}),
    "by its checkpoint": ({ checkpoint }) => ({ checkpoint }),
    "by its checkpoint's id": ({ checkpoint }) => ({ checkpointId: checkpoint.checkpoint_id }),
  })) {
    test(`S28: a question inside a graph inside, answered ${how}, repeats nothing`, async () => {
      const thread = await made();
      await client.runs.wait(thread, "nested", { input: HELLO });
      const state = await client.threads.getState(thread, undefined, { subgraphs: true });
      assert.deepEqual(state.tasks[0].state.next, ["ask"]);
      const values = await client.runs.wait(thread, "nested", { command: { resume: "yes" }, ...addressed(state) });
      assert.equal(values.messages.at(-1).content, "heard yes");
      assert.deepEqual(await server.executed(thread), ["prepare", "ask"]);
    });
  }

  test("S28: an answer to one question by its id, and another to it is refused", async () => {
    const thread = await made();
    const { __interrupt__: [{ id }] } = await client.runs.wait(thread, "nested", { input: HELLO });
    const command = { resume: { [id]: "yes" } };
    assert.equal((await client.runs.wait(thread, "nested", { command })).messages.at(-1).content, "heard yes");
    await assert.rejects(client.runs.wait(thread, "nested", { command }));
    assert.deepEqual(await server.executed(thread), ["prepare", "ask"]);
  });
});
