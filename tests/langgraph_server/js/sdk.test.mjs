/** The client of `@langchain/langgraph-sdk`. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Client } from "@langchain/langgraph-sdk";
import { Dictation, within } from "../../client/dictation.mjs";
import { Cutting } from "./cutting.mjs";
import { Served } from "./serving.mjs";

let server, client;
const HELLO = { messages: [{ type: "human", content: "hello" }] };
const MODES = ["values", "updates", "messages", "messages-tuple", "custom", "debug", "tasks", "checkpoints", "events", "tools"];

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
const names = (parts) => [...new Set(parts.map(({ event }) => event.split("|")[0]))];
const words = (parts, event = "messages") => parts.filter((part) => part.event.split("|")[0] === event)
  .map(({ data }) => data[0].content).join("");
const rejects = (promise, status) => assert.rejects(promise, (error) => {
  assert.equal(error.status, status, String(error));
  assert.ok(JSON.parse(error.text).detail);
  return true;
});

/** A thread whose run is in the midst of an answer. */
async function answering(t, options = {}) {
  const [thread, dictation] = await Promise.all([made(), Dictation.open()]);
  t.after(() => dictation.close());
  const input = { ...HELLO, port: dictation.port };
  const run = await client.runs.create(thread, "chat", { input, streamMode: ["messages-tuple", "values"], ...options });
  const agent = await dictation.attempt();
  agent.say("one ");
  return { thread, dictation, input, run, agent };
}

function says(agent, word) {
  agent.say(word);
  agent.end();
}

describe("the client of the SDK", { concurrency: true }, () => {
  for (const mode of MODES) {
    test(`the stream mode ${mode}`, async () => {
      const parts = await all(client.runs.stream(await made(), "team", { input: HELLO, streamMode: mode }));
      const events = { "messages-tuple": [], messages: [], tools: [], custom: [] }[mode] ?? [mode];
      assert.deepEqual(names(parts), ["metadata", ...events, "end"]);
      const inside = await all(client.runs.stream(await made(), "team",
        { input: HELLO, streamMode: mode, streamSubgraphs: true }));
      const shown = { "messages-tuple": "messages", messages: "messages/partial" }[mode] ?? mode;
      assert.equal(inside.some(({ event }) => event.startsWith(`${shown}|worker:`)), !["tools", "events"].includes(mode));
      assert.ok([...parts, ...inside].every(({ id }) => id));
      if (mode === "messages-tuple") assert.equal(words(inside), "one two three");
      if (mode === "custom") assert.deepEqual(inside[1].data, { percent: 50 });
    });
  }

  test("all stream modes at once, and none", async () => {
    const thread = await made();
    const parts = await all(client.runs.stream(thread, "chat", { input: HELLO, streamMode: MODES }));
    for (const name of ["values", "updates", "messages", "messages/partial", "debug", "tasks", "checkpoints"]) {
      assert.ok(names(parts).includes(name), name);
    }
    const configurable = parts.find(({ event }) => event === "checkpoints").data.config.configurable;
    assert.equal(configurable.thread_id, thread);
    assert.equal((await client.threads.getState(thread, configurable)).checkpoint.checkpoint_id, configurable.checkpoint_id);
    const bare = await all(client.runs.stream(thread, "chat", { input: HELLO, streamMode: [] }));
    assert.deepEqual(names(bare), ["metadata", "values", "end"]);
  });

  test("a run is told when it is made, and its end has its status", async () => {
    const thread = await made();
    let told;
    const onRunCreated = (run) => (told = run);
    const parts = await all(client.runs.stream(thread, "chat", { input: HELLO, onRunCreated }));
    assert.deepEqual(told, { run_id: parts[0].data.run_id, thread_id: thread });
    assert.deepEqual(parts.at(-1).data, { run_id: told.run_id, status: "success" });
    assert.equal((await client.runs.get(thread, told.run_id)).status, "success");
    assert.deepEqual((await client.runs.list(thread)).map(({ run_id }) => run_id), [told.run_id]);
    await server.executed(thread).then((done) => assert.deepEqual(done, ["charge", "model"]));
  });

  test("a run is waited for, joined, and made without a thread", async () => {
    const thread = await made();
    const values = await client.runs.wait(thread, "chat", { input: HELLO });
    assert.deepEqual(values.messages.map(({ content }) => content), ["hello", "one two three"]);
    const run = await client.runs.create(thread, "chat", { input: HELLO });
    assert.equal((await client.runs.join(thread, run.run_id)).messages.length, 4);
    assert.equal((await client.runs.wait(null, "chat", { input: HELLO })).messages.length, 2);
    const alone = await all(client.runs.stream(null, "chat", { input: HELLO }));
    assert.equal(alone.at(-1).data.status, "success");
    const again = await all(client.runs.joinStream(null, alone[0].data.run_id, { lastEventId: "-1" }));
    assert.deepEqual(again, alone);
    const batch = await client.runs.createBatch([{ assistantId: "chat", input: HELLO }, { assistantId: "team" }]);
    assert.equal(new Set(batch.map(({ run_id }) => run_id)).size, 2);
  });

  test("a stream is joined behind each of its events", async () => {
    const thread = await made();
    const streamMode = ["values", "messages", "messages-tuple"];
    const whole = await all(client.runs.stream(thread, "chat", { input: HELLO, streamMode }));
    const rest = (lastEventId) => all(client.runs.joinStream(thread, whole[0].data.run_id, { lastEventId, streamMode }));
    for (const [at, { id }] of whole.entries()) assert.deepEqual(await rest(id), whole.slice(at + 1));
    assert.deepEqual(await rest("-1"), whole);
  });

  test("a stream over a proxy that cuts is whole and has nothing twice", async (t) => {
    const proxy = await Cutting.open(server.url, { bytes: 3000 });
    t.after(() => proxy.close());
    const thread = await made();
    const input = { ...HELLO, messages: [{ type: "human", content: "a long message ".repeat(20) }] };
    const cut = new Client({ apiUrl: proxy.url }).runs.stream(thread, "chat", { input, streamMode: MODES.slice(0, 4) });
    const parts = await all(cut);
    assert.ok(proxy.cuts > 2, `${proxy.cuts} cuts`);
    assert.deepEqual(parts, await all(client.runs.joinStream(thread, parts[0].data.run_id, { lastEventId: "-1" })));
    assert.deepEqual(await server.executed(thread), ["charge", "model"]);
  });

  test("a question is answered by a command, also over waiting", async () => {
    const thread = await made();
    const asked = await client.runs.wait(thread, "chat", { input: { ...HELLO, ask: true } });
    assert.deepEqual(asked.__interrupt__[0].value, { question: "go on?" });
    assert.equal((await client.threads.get(thread)).status, "interrupted");
    const parts = await all(client.runs.stream(thread, "chat", { command: { resume: "yes" }, streamMode: "values" }));
    assert.equal(parts.at(-2).data.messages.at(-1).content, "heard yes");
    assert.deepEqual(await server.executed(thread), ["charge", "model", "ask"]);
  });

  test("a cancelled run is over, for who streams and who waits", async (t) => {
    const { thread, run, agent } = await answering(t);
    const streamed = all(client.runs.joinStream(thread, run.run_id));
    const joined = client.runs.join(thread, run.run_id);
    await client.runs.cancel(thread, run.run_id, true);
    await within(agent.left, "the end of the model");
    assert.equal((await streamed).at(-1).data.status, "interrupted");
    assert.ok((await joined).__error__);
    assert.equal((await client.runs.get(thread, run.run_id)).status, "interrupted");
    await rejects(client.runs.cancel(thread, run.run_id), 404);
    assert.deepEqual(await server.executed(thread), ["charge"]);
  });

  test("several runs are cancelled at once, and one is deleted", async (t) => {
    const { thread, run, agent } = await answering(t);
    await client.runs.cancelMany({ threadId: thread, runIds: [run.run_id] });
    await within(agent.left, "the end of the model");
    await client.runs.join(thread, run.run_id);
    await client.runs.delete(thread, run.run_id);
    await rejects(client.runs.get(thread, run.run_id), 404);
  });

  test("multitask strategy reject", async (t) => {
    const { thread, run, agent } = await answering(t);
    await rejects(client.runs.create(thread, "chat", { input: HELLO, multitaskStrategy: "reject" }), 409);
    says(agent, "two");
    assert.equal((await client.runs.join(thread, run.run_id)).messages.length, 2);
  });

  test("multitask strategy enqueue", async (t) => {
    const { thread, run, agent } = await answering(t);
    const second = await client.runs.create(thread, "chat", { input: { ...HELLO, port: 0 }, multitaskStrategy: "enqueue" });
    assert.equal((await client.runs.get(thread, second.run_id)).status, "pending");
    const pending = await client.runs.list(thread, { status: "pending", select: ["run_id", "kwargs"] });
    assert.deepEqual(pending.map(({ run_id, kwargs }) => [run_id, kwargs.input.messages]), [[second.run_id, HELLO.messages]]);
    agent.end();
    const values = await client.runs.join(thread, second.run_id);
    assert.deepEqual(values.messages.map(({ type }) => type), ["human", "ai", "human", "ai"]);
    assert.equal((await client.runs.get(thread, run.run_id)).status, "success");
  });

  test("multitask strategy interrupt", async (t) => {
    const { thread, dictation, run, input, agent } = await answering(t);
    const second = await client.runs.create(thread, "chat", { input, multitaskStrategy: "interrupt" });
    await within(agent.left, "the end of the model");
    says(await dictation.attempt(), "two");
    const values = await client.runs.join(thread, second.run_id);
    assert.equal(values.messages.at(-1).content, "two");
    assert.equal((await client.runs.get(thread, run.run_id)).status, "interrupted");
    assert.deepEqual(await server.executed(thread), ["charge", "charge", "model"]);
  });

  test("multitask strategy rollback", async (t) => {
    const { thread, dictation, run, input, agent } = await answering(t);
    const second = await client.runs.create(thread, "chat", { input, multitaskStrategy: "rollback" });
    await within(agent.left, "the end of the model");
    says(await dictation.attempt(), "two");
    const values = await client.runs.join(thread, second.run_id);
    assert.deepEqual(values.messages.map(({ content }) => content), ["hello", "two"]);
    await rejects(client.runs.get(thread, run.run_id), 404);
    const native = await fetch(`${server.url}/native/runs/${run.run_id.replaceAll("-", "")}`);
    assert.equal((await native.json()).reason, "displaced");
  });

  test("a run stops when its client leaves, if that is asked for", async (t) => {
    const leaving = new Client({ apiUrl: server.url, defaultHeaders: { "Outlive-Grace": "0.1" } });
    const dictation = await Dictation.open();
    t.after(() => dictation.close());
    const [thread, away] = [await made(), new AbortController()];
    const input = { ...HELLO, port: dictation.port };
    const streamed = all(leaving.runs.stream(thread, "chat", { input, onDisconnect: "cancel", signal: away.signal }));
    streamed.catch(() => {});
    const agent = await dictation.attempt();
    away.abort();
    await within(agent.left, "the end of the model");
    const [run] = await client.runs.list(thread);
    await client.runs.join(thread, run.run_id);
    assert.equal((await client.runs.get(thread, run.run_id)).status, "interrupted");
  });

  test("states are read, written, forked, copied and searched", async () => {
    const { thread_id: thread } = await client.threads.create({ metadata: { of: "states" }, graphId: "chat" });
    await client.runs.wait(thread, "chat", { input: HELLO });
    const history = await client.threads.getHistory(thread, { limit: 100 });
    assert.deepEqual(history.map(({ next }) => next), [[], ["model"], ["charge"], ["__start__"]]);
    const before = history[1].checkpoint;
    assert.deepEqual((await client.threads.getState(thread, before)).next, ["model"]);
    assert.deepEqual((await client.threads.getState(thread, before.checkpoint_id)).next, ["model"]);
    const earlier = await client.threads.getHistory(thread, { before: { configurable: before } });
    assert.deepEqual(earlier.map(({ next }) => next), [["charge"], ["__start__"]]);
    await client.threads.updateState(thread, { values: { messages: [{ type: "human", content: "more" }] }, asNode: "model" });
    const state = await client.threads.getState(thread);
    assert.deepEqual(state.values.messages.map(({ content }) => content), ["hello", "one two three", "more"]);
    const copy = await client.threads.copy(thread);
    assert.deepEqual((await client.threads.getState(copy.thread_id)).values, state.values);
    const forked = await client.runs.wait(thread, "chat", { input: null, checkpoint: before });
    assert.equal(forked.messages.length, 2);
    const found = await client.threads.search({ metadata: { of: "states" }, status: "idle" });
    assert.ok(found.some(({ thread_id, values }) => thread_id === thread && values.messages.length === 2));
    await client.threads.update(thread, { metadata: { more: 1 } });
    assert.equal((await client.threads.get(thread)).metadata.more, 1);
    assert.equal(await client.threads.count({ metadata: { more: 1 } }), 1);
    await client.threads.delete(copy.thread_id);
    await rejects(client.threads.get(copy.thread_id), 404);
  });

  test("assistants are searched, read, made and changed", async () => {
    const own = await client.assistants.search({ graphId: "team" });
    assert.deepEqual(own.map(({ graph_id }) => graph_id), ["team"]);
    const graph = await client.assistants.getGraph(own[0].assistant_id, { xray: true });
    assert.ok(graph.nodes.some(({ id }) => id === "worker:model"));
    assert.ok((await client.assistants.getSchemas(own[0].assistant_id)).input_schema.properties.messages);
    assert.deepEqual(Object.keys(await client.assistants.getSubgraphs(own[0].assistant_id)), ["worker"]);
    const mine = await client.assistants.create({ graphId: "chat", name: "mine", metadata: { a: 1 } });
    await client.assistants.update(mine.assistant_id, { name: "changed" });
    assert.deepEqual((await client.assistants.getVersions(mine.assistant_id)).map(({ version }) => version), [2, 1]);
    await client.assistants.setLatest(mine.assistant_id, 1);
    assert.equal((await client.assistants.get(mine.assistant_id)).name, "mine");
    assert.equal((await client.runs.wait(null, mine.assistant_id, { input: HELLO })).messages.length, 2);
    await client.assistants.delete(mine.assistant_id);
    await rejects(client.assistants.get(mine.assistant_id), 404);
  });

  test("what is refused is refused by its status, with a reason", async () => {
    const [thread, unknown] = [await made(), crypto.randomUUID()];
    await rejects(client.threads.get(unknown), 404);
    await rejects(client.threads.getState(unknown), 404);
    await rejects(client.threads.get("nonsense"), 422);
    await rejects(client.threads.create({ threadId: thread }), 409);
    await rejects(client.runs.get(thread, unknown), 404);
    await rejects(client.runs.wait(unknown, "chat", { input: HELLO }), 404);
    await rejects(client.runs.create(thread, "nobody", { input: HELLO }), 422);
    await rejects(client.runs.create(thread, unknown, { input: HELLO }), 404);
    await rejects(client.runs.create(thread, "chat", { input: HELLO, multitaskStrategy: "wish" }), 422);
    await rejects(all(client.runs.joinStream(thread, unknown)), 404);
    await rejects(client.runs.join(thread, unknown), 404);
    await rejects(client.assistants.get(unknown), 404);
    await assert.rejects(client.runs.wait(thread, "chat", { input: { ...HELLO, port: 1 } }), /ConnectionRefusedError/);
  });
});
