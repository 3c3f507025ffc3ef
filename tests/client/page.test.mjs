/** What happens to a page, told to the client by a page that is only pretended, so that each moment can be chosen. */
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { within } from "./dictation.mjs";
import { HEAD, Misbehaving, RUN, answers, log } from "./misbehaving.mjs";

const page = new EventTarget();
const document = Object.assign(new EventTarget(), { visibilityState: "visible" });
const navigator = { onLine: true };
for (const name of ["addEventListener", "removeEventListener"]) globalThis[name] = page[name].bind(page);
for (const [name, value] of Object.entries({ document, navigator })) {
  Object.defineProperty(globalThis, name, { value, configurable: true });
}
const { Outlive } = await import("../../src/outlive/client/outlive.js"); // by now it is in a page

const LOG = log(["one"]);
const happens = (name, target = page) => target.dispatchEvent(new Event(name));
const waiting = (socket) => socket.write(`${HEAD}\r\n${LOG[0]}`);
const later = (socket) => socket.write(`${HEAD}\r\n:\n`);
let server, controller, states, told;

beforeEach(async () => {
  server = await Misbehaving.open(LOG);
  controller = new AbortController();
  states = [];
  told = new EventTarget();
});

afterEach(() => {
  controller.abort("over");
  server.close();
});

/** A stream that has seen its first event, over these answers of the server. */
async function follow(faults, options = {}) {
  server.faults = faults;
  const onConnection = (now) => {
    states.push(now);
    told.dispatchEvent(new Event(now.state));
  };
  const outlive = new Outlive({ url: server.url, delay: 600_000, longestDelay: 600_000, ...options });
  const stream = outlive.follow(RUN, { onConnection, signal: controller.signal });
  const events = stream[Symbol.asyncIterator]();
  const rest = (async () => {
    for (let step = await events.next(); !step.done; step = await events.next()) told.dispatchEvent(new Event("event"));
  })();
  rest.catch(() => {});
  return { rest };
}

function becomes(name) {
  return within(new Promise((resolve) => told.addEventListener(name, resolve, { once: true })), name);
}

/** Everything that is already under way, and nothing that waits for a timer. */
async function settled() {
  for (let turn = 0; turn < 200; turn += 1) await new Promise(setImmediate);
}

const requests = () => server.requests.length;

test("a page that is left lets go, and comes back only when it is shown", async () => {
  const { rest } = await follow([waiting]);
  await becomes("event");
  const gone = becomes("waiting");
  happens("pagehide");
  await gone;
  happens("online");
  happens("visibilitychange");
  await settled();
  assert.equal(requests(), 1);
  happens("pageshow");
  await within(rest, "the run");
  assert.deepEqual([requests(), server.requests[1].headers["last-event-id"]], [2, `${RUN}:1`]);
});

test("a network that comes back replaces the connection, and ends a wait", async () => {
  const { rest } = await follow([waiting, answers(503)]);
  await becomes("event");
  let waits = becomes("waiting");
  happens("online");
  await waits;
  waits = becomes("waiting");
  happens("online"); // instead of ten minutes
  await waits;
  assert.equal(states.at(-1).error.status, 503);
  happens("online");
  await within(rest, "the run");
  assert.equal(requests(), 3);
});

test("a time that the server named is waited for, whatever happens to the page", async () => {
  await follow([answers(503, { "Retry-After": "600" })]);
  await becomes("waiting");
  for (const name of ["online", "pageshow", "visibilitychange"]) happens(name);
  await settled();
  assert.equal(requests(), 1);
});

test("a page that is looked at again tries again, one that is put away does not", async () => {
  const { rest } = await follow([answers(503)], { delay: Infinity, longestDelay: Infinity, silence: Infinity });
  await becomes("waiting");
  document.visibilityState = "hidden";
  happens("visibilitychange");
  await settled();
  assert.equal(requests(), 1);
  document.visibilityState = "visible";
  happens("visibilitychange");
  await within(rest, "the run");
});

test("a hidden page without a network comes back with the network", async () => {
  document.visibilityState = "hidden";
  navigator.onLine = false;
  const { rest } = await follow([]);
  await settled();
  assert.deepEqual([requests(), states.map(({ state }) => state)], [0, ["waiting"]]);
  navigator.onLine = true;
  happens("online");
  await within(rest, "the run");
  document.visibilityState = "visible";
});

test("a network that is said to be away, and is not, is tried all the same", async () => {
  navigator.onLine = false;
  const { rest } = await follow([], { longestDelay: 1 });
  await within(rest, "the run");
  navigator.onLine = true;
});

for (const name of ["visibilitychange", "resume"]) {
  test(`after ${name} a connection that was silent for long is replaced, a lively one is kept`, async (context) => {
    const { rest } = await follow([waiting]);
    await becomes("event");
    await settled();
    happens(name, document);
    await settled();
    assert.equal(requests(), 1);
    const now = Date.now();
    context.mock.method(Date, "now", () => now + 23_000);
    document.visibilityState = "hidden";
    happens(name, document);
    await settled();
    assert.equal(states.at(-1).state, "open"); // nobody looks
    document.visibilityState = "visible";
    const waits = becomes("waiting");
    happens(name, document);
    await waits;
    happens("pageshow");
    await within(rest, "the run");
    assert.equal(requests(), 2);
  });
}

test("what happens to a page is no failure of the server", async () => {
  const { rest } = await follow(Array.from({ length: 9 }, () => later), { retries: 2 });
  for (let round = 0; round < 9; round += 1) {
    await becomes("open");
    const waits = becomes("waiting");
    happens("online");
    await waits;
    happens("pageshow");
  }
  await within(rest, "the run");
});

test("leaving does not wait for a fetch, or for headers, that do not mind it", async () => {
  const never = () => new Promise(() => {});
  for (const options of [{ fetch: never }, { headers: never }]) {
    const stream = new Outlive({ url: server.url, ...options }).follow(RUN);
    const next = stream[Symbol.asyncIterator]().next();
    await settled();
    await within(stream.leave(), "leaving");
    assert.equal((await next).done, true);
  }
  const silent = new Outlive({ url: server.url, fetch: never, silence: 20, retries: 1, delay: 1 });
  await assert.rejects(within(silent.follow(RUN).each({}), "an end"), { code: "cut" });
});
