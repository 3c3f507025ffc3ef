/** `client.threads.stream` of `@langchain/langgraph-sdk`: the newest client of the event streams. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Client } from "@langchain/langgraph-sdk";
import { WebSocket } from "ws";
import { Dictation, within } from "../../client/dictation.mjs";
import { Cutting } from "./cutting.mjs";
import { Served } from "./serving.mjs";

let server;
const TRANSPORTS = ["sse", "websocket"];
const HELLO = [{ type: "human", content: "hello" }];
const CHANNELS = ["values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom"];

before(async () => (server = await Served.open()));
after(() => server?.close());

/** A stream of a thread that is not there yet, and everything that it shows. */
async function opened(t, { url = server.url, assistantId = "chat", ...options } = {}) {
  const client = new Client({ apiUrl: url });
  const thread = client.threads.stream(crypto.randomUUID(), { assistantId, webSocketFactory: (to) => new WebSocket(to), ...options });
  t.after(() => thread.close());
  const events = [];
  thread.onEvent((event) => events.push(event));
  await within(thread.subscribe({ channels: CHANNELS }), "a subscription");
  return { client, thread, events, over: (end = "completed") => seen(thread, events, end) };
}

/** Wait for an event of the thread itself. */
function seen(thread, events, what) {
  const is = ({ params }) => params.namespace.length === 0 && params.data.event === what;
  const came = new Promise((resolve) => {
    if (events.some(is)) resolve();
    else thread.onEvent((event) => is(event) && resolve());
  });
  return within(came, what);
}

const data = (events, method) => events.filter((event) => event.method === method).map(({ params }) => params.data);
const said = (events) => data(events, "messages").filter(({ event }) => event === "content-block-delta")
  .map(({ delta }) => delta.text).join("");

for (const transport of TRANSPORTS) {
  describe(`the stream of a thread over ${transport}`, { concurrency: true }, () => {
    test("every channel has what is its own, numbered by the thread", async (t) => {
      const { thread, events, over } = await opened(t, { transport, assistantId: "team" });
      await thread.submitRun({ input: { messages: HELLO } });
      await over();
      assert.equal(said(events), "one two three");
      const shown = new Set(events.map(({ method }) => method));
      for (const method of ["values", "updates", "messages", "lifecycle", "checkpoints", "tasks", "custom"]) {
        assert.ok(shown.has(method), method);
      }
      assert.deepEqual(data(events, "custom"), [{ payload: { percent: 50 } }]);
      assert.equal(new Set(events.map(({ event_id }) => event_id)).size, events.length);
      assert.deepEqual(await server.executed(thread.threadId), ["model", "charge"]);
    });

    test("a question is asked and answered", async (t) => {
      const { thread, events, over, client } = await opened(t, { transport });
      await thread.submitRun({ input: { messages: HELLO, ask: true } });
      await over("interrupted");
      const [{ interrupt_id, payload }] = data(events, "input.requested");
      assert.deepEqual(payload, { question: "go on?" });
      await assert.rejects(thread.submitRun({ input: { messages: HELLO } }), /go on\?|waits/);
      await thread.respondInput({ namespace: [], interrupt_id, response: "yes" });
      await over("completed");
      const { values } = await client.threads.getState(thread.threadId);
      assert.equal(values.messages.at(-1).content, "heard yes");
      assert.deepEqual(await server.executed(thread.threadId), ["charge", "model", "ask"]);
    });

    test("an answer over a proxy that cuts is whole, and has nothing twice", async (t) => {
      const [proxy, dictation] = await Promise.all([Cutting.open(server.url), Dictation.open()]);
      t.after(() => [proxy, dictation].forEach((each) => each.close()));
      let connected = () => {};
      const onConnected = () => connected();
      const { thread, events, over } = await opened(t, { transport, url: proxy.url, onConnected });
      await thread.submitRun({ input: { messages: HELLO, port: dictation.port } });
      const agent = await dictation.attempt();
      for (const word of ["one ", "two ", "three ", "four"]) {
        const heard = new Promise((resolve) => thread.onEvent(({ method }) => method === "messages" && resolve()));
        agent.say(word);
        await within(heard, word);
        proxy.cut();
        // It does not come back from a second cut while it subscribes again after the first.
        await within(new Promise((resolve) => (connected = resolve)), "another connection");
      }
      agent.end();
      await Promise.all([over(), over("message-finish")]);
      assert.equal(said(events), "one two three four");
      assert.equal(new Set(events.map(({ event_id }) => event_id)).size, events.length);
      assert.deepEqual(await server.executed(thread.threadId), ["charge", "model"]);
    });

    test("a failure is told with its reason, and what is not known is refused", async (t) => {
      const { thread, events, over } = await opened(t, { transport });
      await thread.submitRun({ input: { messages: HELLO, port: 1 } });
      await over("failed");
      assert.match(data(events, "lifecycle").at(-1).error, /ConnectionRefusedError/);
      await assert.rejects(thread.respondInput({ namespace: [], interrupt_id: "none", response: 1 }), /no_such_interrupt|wait/);
    });
  });
}
