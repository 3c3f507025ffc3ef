/** The calls of a chat page that many people put before a LangGraph server, behind the proxy that it comes with. */
import { Mounted } from "./page.mjs";
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Dictation, within } from "../../client/dictation.mjs";
import { Cutting } from "./cutting.mjs";
import { passthrough } from "./passthrough.mjs";
import { Served } from "./serving.mjs";

const { useStream } = await import("@langchain/langgraph-sdk/react");
const { Client } = await import("@langchain/langgraph-sdk");

const HOW = { streamMode: ["values"], streamSubgraphs: true, streamResumable: true };
const human = (text) => ({ id: crypto.randomUUID(), type: "human", content: [{ type: "text", text }] });
const same = (shown, lines) => JSON.stringify(shown) === JSON.stringify(lines);
let server, proxy, client;

before(async () => {
  server = await Served.open();
  proxy = await passthrough(server.url);
  client = new Client({ apiUrl: proxy.url, apiKey: "a-key", defaultHeaders: { "X-Auth-Scheme": "none" } });
});
after(async () => {
  proxy?.close();
  await server?.close();
});

/** The page: its thread is in its address, its list of threads is read anew when there is one more. */
class Chat {
  thread = null;
  listed = [];

  constructor(t, assistantId = "chat", thread = null, apiUrl = proxy.url) {
    this.thread = thread;
    const onThreadId = (id) => (this.thread = id);
    this.page = new Mounted(useStream, {
      apiUrl, apiKey: "a-key", assistantId, threadId: thread, fetchStateHistory: true,
      onCustomEvent: () => {}, onThreadId: (id) => [onThreadId(id), this.page?.become({ threadId: id })],
    });
    t.after(() => this.page.unmount());
  }

  say(text, more = {}) {
    const message = human(text);
    return this.page.stream.submit({ messages: [message], ...more }, {
      ...HOW, optimisticValues: (before) => ({ ...before, messages: [...(before.messages ?? []), message] }),
    });
  }

  /** The page is at rest, and shows this. */
  shows(lines) {
    return this.page.until((stream, shown) => !stream.isLoading && !stream.isThreadLoading && same(shown, lines), lines.join());
  }

  about(line) {
    const message = this.page.stream.messages.findLast(({ content }) => same(content, line) || content === line);
    return this.page.stream.getMessagesMetadata(message);
  }
}

const WHOLE = ["hello", "one two three"];

describe("the chat page", { concurrency: true }, () => {
  test("it asks whether there is a server, and says so", async () => {
    assert.equal((await fetch(`${proxy.url}/info`, { headers: { "X-Api-Key": "a-key" } })).status, 200);
  });

  test("a conversation is listed by its graph and by its assistant, with its first message, and opened again", async (t) => {
    const chat = new Chat(t);
    await chat.shows([]);
    await within(chat.say("hello"), "an answer");
    await chat.shows(WHOLE);
    await within(chat.say("and?"), "another answer");
    await chat.shows([...WHOLE, "and?", "one two three"]);
    const [{ assistant_id }] = await client.assistants.search({ graphId: "chat" });
    for (const metadata of [{ graph_id: "chat" }, { assistant_id }]) {
      const listed = await client.threads.search({ metadata, limit: 100 });
      const found = listed.find(({ thread_id }) => thread_id === chat.thread);
      assert.equal(found.values.messages[0].content[0].text, "hello");
    }
    const again = new Chat(t, "chat", chat.thread);
    await again.shows([...WHOLE, "and?", "one two three"]);
    assert.deepEqual(await server.executed(chat.thread), ["charge", "model", "charge", "model"]);
  });

  test("an answer is made again, and a message is edited, each on a branch", async (t) => {
    const dictation = await Dictation.open();
    t.after(() => dictation.close());
    const chat = new Chat(t);
    await chat.shows([]);
    await within(chat.say("hello"), "an answer");
    await chat.shows(WHOLE);
    const { firstSeenState } = chat.about("one two three");
    await within(chat.page.stream.submit(undefined, { ...HOW, checkpoint: firstSeenState.parent_checkpoint }), "it again");
    await chat.shows(WHOLE);
    assert.equal(chat.about("one two three").branchOptions.length, 2);
    const first = chat.page.stream.getMessagesMetadata(chat.page.stream.messages[0]).firstSeenState;
    const edited = { messages: [{ type: "human", content: "better" }], port: dictation.port };
    const done = chat.page.stream.submit(edited, { ...HOW, checkpoint: first.parent_checkpoint });
    const agent = await dictation.attempt();
    agent.say("better ", "so");
    agent.end();
    await within(done, "the edited message's answer");
    await chat.shows(["better", "better so"]);
    assert.deepEqual(chat.page.stream.experimental_branchTree.items.length > 0, true);
    assert.deepEqual(await server.executed(chat.thread), ["charge", "model", "model", "charge", "model"]);
  });

  test("a question is answered by decisions, and putting one aside asks it again", async (t) => {
    const chat = new Chat(t);
    await chat.shows([]);
    await within(chat.say("hello", { ask: true }), "a question");
    await chat.page.until((stream) => stream.interrupt?.value?.question, "the question");
    const decisions = [{ type: "approve" }];
    await within(chat.page.stream.submit({}, { command: { resume: { decisions } } }), "its answer");
    await chat.shows([...WHOLE, "heard {'decisions': [{'type': 'approve'}]}"]);
    await within(chat.say("again", { ask: true }), "a question");
    await chat.page.until((stream) => stream.interrupt?.value?.question, "the question");
    await within(chat.page.stream.submit({}, { command: { goto: "__end__" } }), "the end");
    // To LangGraph itself there is no way to the end from outside: it goes on, and so asks again.
    const asked = await chat.page.until((stream) => !stream.isLoading && stream.interrupt, "the question again");
    assert.deepEqual(asked.interrupt.value, { question: "go on?" });
    assert.deepEqual(await server.executed(chat.thread), ["charge", "model", "ask", "charge", "model"]);
  });

  test("a run goes on when the page is left, and the page opened again has its answer", async (t) => {
    const dictation = await Dictation.open();
    t.after(() => dictation.close());
    const chat = new Chat(t);
    await chat.shows([]);
    chat.say("hello", { port: dictation.port });
    const agent = await dictation.attempt();
    agent.say("one ");
    await chat.page.until((_, shown) => shown.at(-1) === "one ", "a word");
    chat.page.unmount();
    agent.say("two ", "three");
    agent.end();
    const [run] = await client.runs.list(chat.thread);
    await client.runs.join(chat.thread, run.run_id);
    await new Chat(t, "chat", chat.thread).shows(WHOLE);
    assert.deepEqual(await server.executed(chat.thread), ["charge", "model"]);
  });

  test("an answer that is cut is whole at its end, though the cursor is not handed on", async (t) => {
    const [dictation, cutting] = await Promise.all([Dictation.open(), Cutting.open(proxy.url)]);
    t.after(() => [dictation, cutting].forEach((each) => each.close()));
    const chat = new Chat(t, "chat", null, `${cutting.url}/api`);
    await chat.shows([]);
    const done = chat.say("hello", { port: dictation.port });
    const agent = await dictation.attempt();
    for (const word of ["one ", "two ", "three"]) {
      agent.say(word);
      await chat.page.until((_, shown) => shown.at(-1)?.endsWith(word), word);
      cutting.cut();
    }
    agent.end();
    await within(done, "the answer");
    await chat.shows(WHOLE);
    const said = chat.page.texts.filter((shown) => shown && shown !== "hello");
    assert.deepEqual(said.filter((shown) => !WHOLE[1].startsWith(shown)), []);
    assert.deepEqual(await server.executed(chat.thread), ["charge", "model"]);
  });
});
