/** The client against `outlive serve`: a real server, killed, ended and started again. */
import assert from "node:assert/strict";
import fs from "node:fs/promises";
import { after, before, test } from "node:test";
import { Outlive, OutliveError } from "../../src/outlive/client/outlive.js";
import { Dictation, within } from "./dictation.mjs";
import { Serving } from "./serving.mjs";

let server, dictation, outlive;
const early = [];

before(async () => {
  [server, dictation] = await Promise.all([Serving.outlive(), Dictation.open()]);
  outlive = client();
});

after(async () => {
  await server?.close();
  dictation?.close();
});

function client(more = {}) {
  return new Outlive({ url: server.url, delay: 50, longestDelay: 500, retries: 100, ...more });
}

function asked(more = {}) {
  return { agent: "assistant", input: dictation.port, ...more };
}

/** The next attempt at this run; another one that comes first is kept. */
async function byRun(run) {
  let at = early.findIndex((attempt) => attempt.run === run);
  for (; at < 0; at = early.findIndex((attempt) => attempt.run === run)) early.push(await dictation.attempt());
  return early.splice(at, 1)[0];
}

/** The next event of this type. */
async function next(events, type) {
  for (;;) {
    const { value, done } = await within(events.next(), `the event ${type}`);
    assert.ok(!done, `the stream ended before ${type}`);
    if (value.type === type) return value;
  }
}

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

const shape = (events) => events.map(({ type, seq, data }) => [seq, type, type === "chunk" ? data : data.state]);

test("an event that travels as a reference is there whole", async () => {
  const stream = await outlive.start(asked());
  const agent = await dictation.attempt();
  const large = "x".repeat(400_000);
  agent.say("small", large, "small again");
  agent.end();
  const events = await within(all(stream), "the end");
  const chunks = events.filter(({ type }) => type === "chunk").map(({ data }) => data);
  assert.deepEqual(chunks, ["small", large, "small again"]);
});

test("a run is submitted and followed to its end in one request", async () => {
  const stream = await outlive.start(asked({ thread: "a/b c" }));
  const agent = await dictation.attempt();
  assert.equal(stream.id, agent.run);
  assert.equal(stream.admitted, "created");
  agent.say("Grüße 🛫 \u2028 a\r\nb", { n: [1, null] });
  agent.end();
  const events = await within(all(stream), "the run");
  assert.deepEqual(shape(events), [
    [1, "attempt", undefined],
    [2, "chunk", "Grüße 🛫 \u2028 a\r\nb"],
    [3, "chunk", { n: [1, null] }],
    [4, "end", "succeeded"],
  ]);
  assert.equal(stream.cursor, `${stream.id}:4`);
  assert.deepEqual(await all(outlive.follow(stream.id)), events);
  assert.deepEqual(await all(outlive.follow(stream.id, { after: events[1].id })), events.slice(2));
  assert.deepEqual(await all(outlive.follow(stream.id, { after: 4 })), []); // 204
  assert.equal((await stream.read()).state, "succeeded");
  const thread = await outlive.thread("a/b c");
  assert.deepEqual([thread.thread, thread.runs[0].run_id], ["a/b c", stream.id]);
});

test("the same key is the same run, and another body under it is refused", async () => {
  const [first, second] = await Promise.all([1, 2].map(() => outlive.start(asked(), { key: "k" })));
  assert.equal(first.id, second.id);
  assert.deepEqual([first.admitted, second.admitted].sort(), ["attached", "created"]);
  await assert.rejects(outlive.start(asked({ thread: "other" }), { key: "k" }), (error) => {
    assert.ok(error instanceof OutliveError);
    assert.deepEqual([error.status, error.code, error.runId], [409, "key_conflict", first.id]);
    assert.match(error.message, /Repeat the first body/);
    return true;
  });
  (await dictation.attempt()).end();
  assert.deepEqual(await all(first), await all(second));
});

test("runs are listed, read and stopped; a stop still has its end", async () => {
  const made = await outlive.submit(asked({ thread: "listed" }));
  const agent = await dictation.attempt();
  assert.deepEqual((await outlive.list({ thread: "listed" })).runs.map((run) => run.run_id), [made.run_id]);
  const stream = outlive.follow(made.run_id);
  const events = stream[Symbol.asyncIterator]();
  agent.say("first");
  assert.equal((await next(events, "chunk")).data, "first");
  assert.equal((await stream.stop()).outcome, "requested");
  const { state, reason } = (await next(events, "end")).data;
  assert.deepEqual([state, reason], ["stopped", "requested"]);
  assert.equal((await events.next()).done, true);
  assert.equal((await outlive.stop(made.run_id)).outcome, "already");
  assert.equal((await outlive.read(made.run_id)).state, "stopped");
});

test("what is refused is an error that says why, at once", async () => {
  const refused = [
    [() => all(outlive.follow("0".repeat(32))), 404, "not_found"],
    [() => outlive.read("nobody"), 404, "not_found"],
    [() => outlive.start({ agent: "nobody" }), 404, "not_found"],
    [() => outlive.start({ ...asked(), nonsense: 1 }), 422, "invalid_input"],
  ];
  for (const [work, status, code] of refused) {
    await assert.rejects(within(work(), code), (error) => {
      assert.deepEqual([error.status, error.code, error.transient], [status, code, false]);
      return true;
    });
  }
  const made = await outlive.submit(asked());
  (await dictation.attempt()).end();
  await assert.rejects(all(outlive.follow(made.run_id, { after: 999 })), { status: 400, code: "invalid_cursor" });
});

test("leaving lets a run go on, and the rest is there later", async () => {
  const stream = await outlive.start(asked());
  const agent = await dictation.attempt();
  agent.say("seen");
  let cursor;
  for await (const event of stream) {
    cursor = event.id;
    if (event.type === "chunk") break;
  }
  agent.say("unseen");
  agent.end();
  const rest = await within(all(outlive.follow(stream.id, { after: cursor })), "the rest");
  assert.deepEqual(shape(rest).map(([, ...what]) => what), [["chunk", "unseen"], ["end", "succeeded"]]);
});

test("an intent whose run was cut off by leaving is gone on with", async () => {
  const request = asked({ agent: "watched" });
  const first = await outlive.start(request, { intent: "question" });
  const agent = await dictation.attempt();
  await first.leave();
  await within(agent.left, "the end of the agent");
  const cut = await within(all(outlive.follow(first.id)), "the end of the run");
  assert.deepEqual([cut.at(-1).data.state, cut.at(-1).data.reason], ["stopped", "disconnect"]);
  const again = await outlive.resume("question", { after: first.cursor });
  assert.equal(again.admitted, "continued");
  assert.notEqual(again.id, first.id);
  (await dictation.attempt()).end();
  assert.equal((await within(all(again), "the second run")).at(-1).data.state, "succeeded");
  assert.equal(await outlive.resume("question"), null);
});

for (const signal of ["SIGTERM", "SIGKILL"]) {
  test(`a server that ends by ${signal} and comes back costs no event and repeats none`, async () => {
    const connections = [];
    const stream = await outlive.start(asked(), { onConnection: (now) => connections.push(now.state) });
    const events = stream[Symbol.asyncIterator]();
    const agent = await dictation.attempt();
    agent.say("one", "two");
    const seen = [await next(events, "chunk"), await next(events, "chunk")];
    await server.end(signal);
    const restarted = next(events, "restart");
    const starting = outlive.start(asked({ thread: signal }), { key: signal }); // of a server that is away
    await server.begin();
    const again = await byRun(stream.id);
    const later = await within(starting, "the submit");
    (await byRun(later.id)).end();
    assert.equal((await within(all(later), "the later run")).at(-1).data.state, "succeeded");
    assert.equal((await outlive.list({ thread: signal })).runs.length, 1);
    assert.ok(again.attempt > agent.attempt);
    const { epoch, seq } = await restarted;
    assert.ok(epoch > 1);
    again.say("three");
    again.end();
    seen.push(await next(events, "chunk"), await next(events, "end"));
    assert.deepEqual(seen.map((event) => event.data.state ?? event.data), ["one", "two", "three", "succeeded"]);
    assert.deepEqual(seen.map((event) => event.seq), [2, 3, seq + 1, seq + 2]);
    assert.equal((await events.next()).done, true);
    assert.ok(connections.includes("waiting"));
    assert.equal(connections.at(-1), "closed");
  });
}

test("the server has the module that is tested here, as a module", async () => {
  const answer = await fetch(`${server.url}/client.js`);
  assert.match(answer.headers.get("content-type"), /^text\/javascript/);
  const file = new URL("../../src/outlive/client/outlive.js", import.meta.url);
  assert.equal(await answer.text(), await fs.readFile(file, "utf8"));
  assert.equal((await fetch(`${server.url}/client.js`, { method: "HEAD" })).status, 200);
});
