/** The client against a server that cuts, hangs, lies and repeats: each event once, or an error that says why. */
import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { Outlive, OutliveError } from "../../src/outlive/client/outlive.js";
import { within } from "./dictation.mjs";
import { HEAD, Misbehaving, RUN, answers, cut, frame, log, problem, right, says } from "./misbehaving.mjs";

const CHUNKS = ["one", "zwei – 🛫", "", "drei\n\n", { four: [null, "\u2028"] }];
const LOG = log(CHUNKS);
const WHOLE = ["attempt", ...CHUNKS, "succeeded"];
const opened = [];

after(() => {
  for (const server of opened) server.close();
});

/** Tests of which each waits more than it works. */
const together = (name, tests) => describe(name, { concurrency: 8 }, tests);

async function misbehaving(faults, frames = LOG) {
  const server = await Misbehaving.open(frames, faults);
  opened.push(server);
  return server;
}

function client(server, more = {}) {
  return new Outlive({ url: server.url, delay: 1, longestDelay: 60, ...more });
}

function shown({ type, data }) {
  return type === "chunk" ? data : type === "end" ? data.state : type;
}

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(shown(event));
  return events;
}

/** Follow it over faults, and say what was seen. */
async function follow(faults, { frames, watching = {}, ...options } = {}) {
  const server = await misbehaving(faults, frames);
  const seen = await within(all(client(server, options).follow(RUN, watching)), "the run");
  return { seen, server, cursors: server.requests.map(({ headers }) => headers["last-event-id"]) };
}

together("a connection", () => {
  for (const how of ["closed", "torn", "reset", "silent"]) {
    test(`a connection that ends ${how}, wherever it is, loses nothing and repeats nothing`, async () => {
      const length = Buffer.byteLength(LOG.join(""));
      const step = how === "silent" ? 97 : 11; // silence takes its time
      const places = Array.from({ length: Math.floor(length / step) }, (_, at) => at * step);
      const silence = how === "silent" ? 1_500 : 45_000;
      const runs = places.map((at) => follow([cut(at, how), cut(at % 64, how)], { silence }));
      for (const { seen } of await Promise.all(runs)) assert.deepEqual(seen, WHOLE);
    });
  }
});

test("connections that each bring one event end in the whole run", async () => {
  const one = LOG.map((text) => cut(Buffer.byteLength(text) + 3, "closed"));
  const { seen, cursors } = await follow(one);
  assert.deepEqual(seen, WHOLE);
  assert.deepEqual(cursors, [undefined, ...LOG.slice(1).map((_, at) => `${RUN}:${at + 1}`)]);
});

test("troubles of every kind, one after the other, lose nothing and repeat nothing", async () => {
  const pick = (list) => list[Math.floor(Math.random() * list.length)];
  const trouble = () => {
    const [name, fault] = pick(Object.entries(TROUBLES));
    const at = Math.floor(Math.random() * 900);
    const how = pick(["closed", "torn", "reset", "silent"]);
    return Math.random() < 0.5 ? [name, fault] : [`${how} at ${at}`, cut(at, how)];
  };
  const runs = Array.from({ length: 40 }, async () => {
    const troubles = Array.from({ length: 6 }, trouble);
    const { seen } = await follow(troubles.map(([, fault]) => fault), { silence: 1_500 });
    assert.deepEqual(seen, WHOLE, `after ${troubles.map(([name]) => name).join(", ")}`);
  });
  await Promise.all(runs);
});

test("an end of the body is no end of the run", async () => {
  const { seen, server } = await follow([says(`${HEAD}\r\n`), says(`${HEAD}\r\n:\n`)]);
  assert.deepEqual(seen, WHOLE);
  assert.equal(server.requests.length, 3);
});

const TROUBLES = {
  "half a header": says("HTTP/1.1 200 OK\r\nContent-Ty"),
  "no answer at all": (socket) => socket.end(),
  "a reset": (socket) => socket.resetAndDestroy(),
  garbage: says("\x00\x01 what?\r\n\r\n"),
  "500": answers(500, {}, "<h1>Oops</h1>"),
  "502 of a proxy": answers(502, { "Content-Type": "text/html" }, "<h1>Bad Gateway</h1>"),
  "503 with half a problem": answers(503, { "Content-Type": "application/json", "Content-Length": 99 }, '{"code"'),
  "429": answers(429),
  "408": answers(408),
  "an error event": says(`${HEAD}\r\n${LOG[0]}event: error\ndata: {"code":"store_unavailable","message":"Away."}\n\n`),
};

together("trouble", () => {
  for (const [name, trouble] of Object.entries(TROUBLES)) {
    test(`${name} is tried again, for a stream, a submit and a call`, async () => {
      const { seen } = await follow([trouble, trouble]);
      assert.deepEqual(seen, WHOLE);
      const server = await misbehaving([trouble, trouble]);
      const stream = await within(client(server).start({ agent: "a" }), "the submit");
      assert.deepEqual(await within(all(stream), "the run"), WHOLE);
      const submits = server.requests.filter(({ method }) => method === "POST");
      const keys = submits.map(({ headers }) => headers["idempotency-key"]);
      assert.equal(new Set(keys).size, 1);
      if (name === "an error event") return;
      const record = answers(200, { "Content-Type": "application/json" }, '{"run_id":"x"}');
      const other = await misbehaving([trouble, trouble, record]);
      assert.deepEqual(await within(client(other).read("x"), "the record"), { run_id: "x" });
    });
  }
});

together("waiting", () => {
  test("a server that says nothing is given up after the silence, before its header and after", async () => {
    const silent = () => {};
    const half = (socket) => socket.write("HTTP/1.1 200 OK\r\nContent-Ty");
    const { seen } = await follow([silent, half], { silence: 1_000 });
    assert.deepEqual(seen, WHOLE);
  });

  test("a heartbeat is a sign of life", async () => {
    let beats = 0;
    const beating = (socket, frames) => {
      socket.write(`${HEAD}\r\n`);
      const timer = setInterval(() => {
        beats += 1;
        socket.write(":\n");
        if (beats === 40) socket.end(frames.join(""), () => clearInterval(timer));
      }, 50);
    };
    const { seen, server } = await follow([beating], { silence: 1500 });
    assert.deepEqual(seen, WHOLE);
    assert.equal(server.requests.length, 1);
  });

  test("a large record that comes slowly is read for as long as something comes", async () => {
    const text = JSON.stringify({ run_id: RUN, output: "é".repeat(1000) });
    const slow = (socket) => {
      socket.write(`HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n`);
      const bytes = Buffer.from(text);
      let at = 0;
      const timer = setInterval(() => {
        if (at < bytes.length) return socket.write(bytes.subarray(at, (at += 53)));
        clearInterval(timer);
        return socket.end();
      }, 50);
    };
    const server = await misbehaving([slow]);
    assert.deepEqual(await client(server, { silence: 1_500 }).read(RUN), JSON.parse(text));
    server.faults = [answers(200, { "Content-Type": "application/json" }, "<h1>")];
    await assert.rejects(client(server).read(RUN), { code: "no_json", transient: false });
  });

  test("a process ends by itself when its streams have", async () => {
    const { spawn } = await import("node:child_process");
    const { once } = await import("node:events");
    const server = await misbehaving([cut(200, "reset")]);
    const module = new URL("../../src/outlive/client/outlive.js", import.meta.url);
    const code = `import { Outlive } from "${module}"; const outlive = new Outlive({ url: "${server.url}" });
      await outlive.follow("${RUN}").each({}); console.log("over")`;
    const stdio = ["ignore", "pipe", "inherit"];
    const child = spawn(process.execPath, ["--input-type=module", "-e", code], { stdio });
    let said = "";
    child.stdout.on("data", (text) => (said += text));
    const [status] = await within(once(child, "exit"), "the end of the process");
    assert.deepEqual([said.trim(), status], ["over", 0]);
  });

  test("a server that never gets anywhere is given up after so many tries", async () => {
    const server = await misbehaving(Array.from({ length: 99 }, () => answers(503)));
    const following = all(client(server, { retries: 3 }).follow(RUN));
    await assert.rejects(within(following, "an end"), { status: 503, transient: true });
    assert.equal(server.requests.length, 4);
    await assert.rejects(within(client(server).read(RUN), "an end"), { status: 503 });
    assert.equal(server.requests.length, 4 + 5);
    const failed = 'event: error\ndata: {"code":"stream_failed"}\n\n';
    server.faults = Array.from({ length: 9 }, () => says(`${HEAD}\r\n${failed}`));
    const failing = all(client(server, { retries: 2 }).follow(RUN));
    await assert.rejects(within(failing, "an end"), { code: "stream_failed", transient: true });
  });
});

for (const status of [400, 401, 403, 404, 409, 413, 422]) {
  test(`${status} is final, with all that the server said`, async () => {
    const server = await misbehaving([problem(status, "some_code", { run_id: RUN, field: "x" })]);
    await assert.rejects(all(client(server).follow(RUN)), (error) => {
      assert.ok(error instanceof OutliveError);
      assert.deepEqual([error.status, error.code, error.runId, error.transient], [status, "some_code", RUN, false]);
      assert.deepEqual([error.message, error.problem.field], ["No. Do so.", "x"]);
      return true;
    });
    assert.equal(server.requests.length, 1);
  });
}

test("204 ends the iteration without an event", async () => {
  const { seen, server } = await follow([], { watching: { after: LOG.length } });
  assert.deepEqual([seen, server.requests.length], [[], 1]);
});

test("an answer that is no stream of events is final", async () => {
  for (const page of [answers(200, { "Content-Type": "text/html" }, "<form>Log in</form>"), answers(200)]) {
    const server = await misbehaving([page]);
    await assert.rejects(all(client(server).follow(RUN)), { code: "no_stream", transient: false });
  }
});

test("Retry-After and retry are minded, and neither is believed without bound", async () => {
  const waits = async (faults) => {
    const server = await misbehaving(faults);
    const controller = new AbortController();
    const found = [];
    const onConnection = ({ state, delay }) => {
      if (state === "waiting") {
        found.push(delay);
        controller.abort("heard");
      }
    };
    const { signal } = controller;
    const stream = client(server, { delay: 500, longestDelay: 30_000 }).follow(RUN, { signal, onConnection });
    await all(stream).catch((reason) => assert.equal(reason, "heard"));
    return found[0];
  };
  const between = async (fault, least, most) => {
    const waited = await waits([fault]);
    assert.ok(least <= waited && waited <= most, `${waited} is not from ${least} to ${most}`);
  };
  await between(answers(503), 500, 2_000);
  await between(answers(503, { "Retry-After": "7" }), 7_000, 8_750);
  await between(answers(503, { "Retry-After": "soon" }), 500, 2_000);
  await between(answers(503, { "Retry-After": "-5" }), 500, 2_000);
  await between(answers(503, { "Retry-After": "99999999999" }), 600_000, 750_000);
  const hour = { Date: "Mon, 01 Jan 2001 00:00:00 GMT", "Retry-After": "Mon, 01 Jan 2001 00:01:00 GMT" };
  await between(answers(503, hour), 60_000, 75_000); // by the server's clock, whatever ours says
  await between(says(`${HEAD}\r\n${LOG[0]}retry: 3000\n`), 3_000, 6_000);
  await between(says(`${HEAD}\r\n${LOG[0]}retry: 0\n`), 20, 40);
  await between(says(`${HEAD}\r\n${LOG[0]}retry: 99999999999999999999\n`), 600_000, 750_000);
});

test("what was seen is not seen again, whatever the server repeats", async () => {
  const again = says(`${HEAD}\r\n${LOG.slice(0, 4).join("")}${LOG.slice(1, 3).join("")}`);
  const everything = (socket, frames) => socket.end(`${HEAD}\r\n${frames.join("")}${frames.join("")}`);
  const { seen } = await follow([again, again, everything]);
  assert.deepEqual(seen, WHOLE);
});

test("nothing after the end is an event", async () => {
  const more = (socket, frames) => socket.end(`${HEAD}\r\n${frames.join("")}${frame(99, "chunk", "late")}`);
  const { seen, server } = await follow([more]);
  assert.deepEqual([seen, server.requests.length], [WHOLE, 1]);
});

test("events without an id, of other names and with more fields are no trouble", async () => {
  const strange = ": hello\nevent: ping\ndata: {}\n\ndata: 1\n\nwhat: ever\n\n";
  const frames = [...LOG];
  frames.splice(2, 0, frame(3, "later", 1));
  const renumbered = frames.map((text, at) => text.replace(/id: (.*):\d+/, `id: $1:${at + 1}`));
  const { seen } = await follow([says(`${HEAD}\r\n${strange}${renumbered.join(strange)}`)]);
  assert.deepEqual(seen, [...WHOLE.slice(0, 2), "later", ...WHOLE.slice(2)]);
});

const DAMAGES = {
  "a hole": LOG[0] + LOG[2],
  "an event of another run": LOG[0] + frame(2, "chunk", "x", { run: "f".repeat(32) }),
  "no JSON": `${LOG[0]}event: chunk\ndata: {"epo\nid: ${RUN}:2\n\n`,
  "JSON that is no event": `${LOG[0]}event: chunk\ndata: 7\nid: ${RUN}:2\n\n`,
  "an id that is none": `${LOG[0]}event: chunk\ndata: {}\nid: what\n\n`,
};

together("damage", () => {
  for (const [name, text] of Object.entries(DAMAGES)) {
    test(`${name} is asked for once more, and twice at one place is final`, async () => {
      const bad = says(`${HEAD}\r\n${text}`);
      const { seen } = await follow([bad]);
      assert.deepEqual(seen, WHOLE);
      const server = await misbehaving([bad, bad]);
      await assert.rejects(within(all(client(server).follow(RUN)), "an error"), { code: "damaged", transient: false });
      assert.equal(server.requests.length, 2);
    });
  }
});

test("a new attempt is told, and what an older one still says is dropped", async () => {
  const frames = [
    frame(1, "attempt", { epoch: 1 }),
    frame(2, "chunk", "old"),
    frame(3, "attempt", { epoch: 3 }, { epoch: 3 }),
    frame(4, "chunk", "late", { epoch: 1 }),
    frame(5, "chunk", "new", { epoch: 3 }),
    frame(6, "end", { state: "succeeded" }, { epoch: 3 }),
  ];
  const text = [];
  const server = await misbehaving([], frames);
  const end = await client(server).follow(RUN).each({
    chunk: ({ data }) => text.push(data),
    restart: ({ epoch }) => text.splice(0, text.length, `epoch ${epoch}`),
  });
  assert.deepEqual([text, end.data.state], [["epoch 3", "new"], "succeeded"]);
  const rest = await all(client(server).follow(RUN, { after: `${RUN}:2` }));
  assert.deepEqual(rest, ["restart", "new", "succeeded"]);
});

test("an expired cursor is refused with what there is, or skipped if the caller says so", async () => {
  const expired = problem(410, "expired", { oldest: 3, latest: 7, snapshot: "/runs/x" });
  const kept = (socket, frames, request) =>
    (Number((request.headers["last-event-id"] ?? ":0").split(":")[1]) < 2 ? expired : right)(socket, frames, request);
  const server = await misbehaving([kept, kept]);
  await assert.rejects(all(client(server).follow(RUN)), (error) => {
    const { oldest, latest, snapshot } = error.problem;
    assert.deepEqual([error.status, error.transient, oldest, latest, snapshot], [410, false, 3, 7, "/runs/x"]);
    return true;
  });
  const gaps = [];
  server.faults = [kept, kept];
  const seen = [];
  await client(server).follow(RUN, { gaps: "skip" }).each({
    gap: ({ data, id }) => gaps.push([data.oldest, data.snapshot, id]),
    chunk: ({ data }) => seen.push(data),
  });
  assert.deepEqual([gaps, seen], [[[3, "/runs/x", `${RUN}:2`]], CHUNKS.slice(1)]);
  server.faults = Array.from({ length: 9 }, () => expired);
  await assert.rejects(within(all(client(server).follow(RUN, { gaps: "skip" })), "an error"), { status: 410 });
});

test("a submit that lost its answer is repeated with its key, and followed by its cursor", async () => {
  const server = await misbehaving([(socket) => socket.destroy(), cut(LOG[0].length + LOG[1].length + 5, "reset")]);
  const stream = await client(server).start({ agent: "a", input: "ä" }, { key: "mine" });
  assert.deepEqual(await within(all(stream), "the run"), WHOLE);
  const [first, second, third] = server.requests;
  assert.deepEqual([first.method, first.path, first.headers["idempotency-key"]], ["POST", "/runs", "mine"]);
  assert.deepEqual(JSON.parse(first.body), { agent: "a", input: "ä" });
  assert.deepEqual([second.method, second.headers["idempotency-key"], second.body], ["POST", "mine", first.body]);
  assert.deepEqual([third.method, third.path], ["GET", `/runs/${RUN}/events`]);
  assert.equal(third.headers["last-event-id"], `${RUN}:2`);
  assert.equal(third.headers["idempotency-key"], undefined);
});

test("a handler of one's own is asked again with the cursor, also by the page that comes after", async () => {
  const store = storage();
  const server = await misbehaving([cut(LOG[0].length + LOG[1].length, "reset"), cut(3, "closed"), waiting]);
  const stream = await client(server, { storage: store }).start({ text: "hi" }, { to: "/chat", intent: "chat" });
  const events = stream[Symbol.asyncIterator]();
  await events.next();
  const { value } = await events.next();
  const next = events.next();
  while (server.requests.length < 3) await new Promise(setImmediate);
  await stream.leave();
  assert.equal((await next).done, true);
  const resumed = await client(server, { storage: store }).resume("chat", { after: value.id });
  assert.deepEqual(await within(all(resumed), "the rest"), WHOLE.slice(2));
  const sent = ({ method, path, headers, body }) => [method, path, headers["last-event-id"], body];
  const posted = (cursor) => ["POST", "/chat", cursor, '{"text":"hi"}'];
  assert.deepEqual(server.requests.map(sent), [undefined, `${RUN}:2`, `${RUN}:2`, `${RUN}:2`].map(posted));
  assert.equal(new Set(server.requests.map(({ headers }) => headers["idempotency-key"])).size, 1);
});

test("a handler of one's own may answer with the run that continues the one that was cut off", async () => {
  const next = "f".repeat(32);
  const renamed = (text) => text.replaceAll(RUN, next);
  const continued = says(renamed(`${HEAD}\r\n${LOG.join("")}`));
  const server = await misbehaving([cut(LOG[0].length + LOG[1].length, "reset"), continued]);
  const stream = await client(server).start({ text: "hi" }, { to: "/chat" });
  assert.deepEqual(await within(all(stream), "the run"), ["attempt", "one", "restart", ...CHUNKS, "succeeded"]);
  assert.equal(stream.id, next);
});

test("a page that may not read our headers learns the run from its first event", async () => {
  const hidden = HEAD.replace(/Outlive-.*\r\n/g, "");
  const server = await misbehaving([says(`${hidden}\r\n`), says(`${hidden}\r\n${LOG[0]}`)]);
  const stream = await client(server).start({ agent: "a" });
  assert.deepEqual(await within(all(stream), "the run"), WHOLE);
  assert.deepEqual(server.requests.map(({ method }) => method), ["POST", "POST", "GET"]);
  assert.equal(stream.id, RUN);
});

test("headers are asked for each request, and go with each", async () => {
  const server = await misbehaving([cut(LOG[0].length, "closed")]);
  let asked = 0;
  const headers = async () => ({ Authorization: `Bearer ${(asked += 1)}` });
  assert.deepEqual(await all(client(server, { headers }).follow(RUN)), WHOLE);
  assert.deepEqual(server.requests.map((request) => request.headers.authorization), ["bearer 1", "bearer 2"]);
  const broken = client(server, { headers: () => Promise.reject(new Error("no token")) });
  await assert.rejects(all(broken.follow(RUN)), /no token/);
});

// ------------------------------------------------------------ leaving

const waiting = (socket) => socket.write(`${HEAD}\r\n${LOG[0]}${LOG[1]}`);

async function gone(server) {
  const socketsGone = async () => {
    while (server.open > 0) await new Promise(setImmediate);
  };
  await within(socketsGone(), "the end of the connections");
}

test("leaving ends an iteration that waits, and the connection", async () => {
  const server = await misbehaving([waiting]);
  const stream = client(server).follow(RUN);
  const seen = [];
  for await (const event of stream) {
    seen.push(shown(event));
    if (event.type === "chunk") setImmediate(() => stream.leave());
  }
  assert.deepEqual(seen, ["attempt", "one"]);
  await gone(server);
});

test("break closes the connection, with events still unread", async () => {
  const server = await misbehaving([waiting]);
  for await (const event of client(server).follow(RUN)) {
    assert.equal(event.type, "attempt");
    break;
  }
  await gone(server);
});

test("an aborted signal throws its reason, wherever the stream is", async () => {
  const moments = {
    before: (controller) => controller.abort("why"),
    connecting: (controller, { state }) => state === "connecting" && controller.abort("why"),
    reading: (controller, { state }) => state === "open" && setImmediate(() => controller.abort("why")),
    waiting: (controller, { state }) => state === "waiting" && controller.abort("why"),
  };
  for (const [name, moment] of Object.entries(moments)) {
    const server = await misbehaving([name === "waiting" ? answers(503) : waiting]);
    const controller = new AbortController();
    if (name === "before") moment(controller);
    const onConnection = (now) => moment(controller, now);
    const stream = client(server).follow(RUN, { signal: controller.signal, onConnection });
    await assert.rejects(within(all(stream), name), (reason) => reason === "why");
    await gone(server);
  }
});

test("an aborted signal holds back even what has arrived", async () => {
  const server = await misbehaving([]);
  const controller = new AbortController();
  const seen = [];
  const following = client(server).follow(RUN, { signal: controller.signal }).each({
    attempt: () => controller.abort("enough"),
    chunk: ({ data }) => seen.push(data),
  });
  await assert.rejects(within(following, "the end"), (reason) => reason === "enough");
  assert.deepEqual(seen, []);
});

test("a connection that is given up is closed before there is another", async () => {
  let closed;
  const bad = (socket) => {
    closed = new Promise((resolve) => socket.once("close", resolve));
    socket.write(`${HEAD}\r\n${LOG[0]}${LOG[2]}`);
  };
  const next = (...exchange) => within(closed, "the first to close").then(() => right(...exchange));
  const { seen } = await follow([bad, next]);
  assert.deepEqual(seen, WHOLE);
});

test("a signal leaves a submit that waits for its server, and a call", async () => {
  const server = await misbehaving([() => {}, () => {}]);
  const work = [
    (signal) => client(server).start({ agent: "a" }, { signal }),
    (signal) => client(server).submit({ agent: "a" }, { signal }),
  ];
  for (const begin of work) {
    const controller = new AbortController();
    const begun = begin(controller.signal);
    setImmediate(() => controller.abort(new Error("enough")));
    await assert.rejects(within(begun, "the end"), /enough/);
  }
  await gone(server);
});

test("an exception of the caller's own code is the caller's, and closes the connection", async () => {
  const server = await misbehaving([waiting, waiting]);
  const failing = client(server).follow(RUN).each({ chunk: () => assert.fail("mine") });
  await assert.rejects(failing, /mine/);
  const onConnection = () => assert.fail("mine too");
  await assert.rejects(all(client(server).follow(RUN, { onConnection })), /mine too/);
  await gone(server);
});

test("a reader that takes its time holds the server back and misses nothing", async () => {
  const frames = log(Array.from({ length: 400 }, (_, at) => `${at}`.padEnd(50_000, ".")));
  const server = await misbehaving([], frames);
  let sent = 0;
  server.faults.push(async (socket) => {
    socket.write(`${HEAD}\r\n`);
    for (const text of frames) {
      if (!socket.write(text)) await new Promise((resolve) => socket.once("drain", resolve));
      sent += 1;
    }
    socket.end();
  });
  const events = client(server).follow(RUN)[Symbol.asyncIterator]();
  await events.next();
  for (let turn = 0; turn < 2_000; turn += 1) await new Promise(setImmediate); // in which nothing may be read on
  assert.ok(sent < 400, "all of 20 MB is somewhere in memory");
  let count = 1;
  while (!(await within(events.next(), "an event")).done) count += 1;
  assert.equal(count, frames.length);
});

// ------------------------------------------------------------ intents

function storage() {
  const kept = new Map();
  return {
    kept,
    getItem: (name) => kept.get(name) ?? null,
    setItem: (name, text) => kept.set(name, text),
    removeItem: (name) => kept.delete(name),
  };
}

const submitted = (admitted) =>
  answers(201, { "Content-Type": "application/json" }, JSON.stringify({ run_id: RUN, admitted }));

test("an intent keeps its key until its run has ended, also for the page that comes after", async () => {
  const store = storage();
  const server = await misbehaving([waiting, waiting, submitted("attached"), right]);
  const first = await client(server, { storage: store }).start({ agent: "a" }, { intent: "chat" });
  const twice = await client(server, { storage: store }).start({ agent: "a" }, { intent: "chat" });
  await Promise.all([first.leave(), twice.leave()]);
  const next = client(server, { storage: store }); // another page
  const resumed = await next.resume("chat", { after: `${RUN}:2` });
  assert.deepEqual([resumed.id, resumed.admitted], [RUN, "attached"]);
  assert.deepEqual(await all(resumed), WHOLE.slice(2));
  const keys = server.requests.slice(0, 3).map(({ headers }) => headers["idempotency-key"]);
  assert.equal(new Set(keys).size, 1);
  assert.equal(server.requests[3].headers["last-event-id"], `${RUN}:2`);
  assert.equal(store.kept.size, 0);
  assert.equal(await next.resume("chat"), null);
  server.faults = [right];
  await all(await next.start({ agent: "a" }, { intent: "chat" }));
  assert.notEqual(server.requests.at(-1).headers["idempotency-key"], keys[0]);
});

test("another request under an intent, or a refused one, is another key", async () => {
  const server = await misbehaving([waiting, waiting, problem(422, "invalid_input"), waiting]);
  const outlive = client(server, { storage: storage() });
  for (const input of [1, 2]) await (await outlive.start({ agent: "a", input }, { intent: "chat" })).leave();
  await assert.rejects(outlive.start({ agent: "a", input: 2 }, { intent: "chat" }), { status: 422 });
  await (await outlive.start({ agent: "a", input: 2 }, { intent: "chat" })).leave();
  const [one, two, three, four] = server.requests.map(({ headers }) => headers["idempotency-key"]);
  assert.notEqual(one, two);
  assert.equal(two, three);
  assert.notEqual(three, four);
});

test("an intent is its newest request's, whatever becomes of one before it", async () => {
  const store = storage();
  const server = await misbehaving([right, waiting]);
  const outlive = client(server, { storage: store });
  const old = await outlive.start({ agent: "a", input: 1 }, { intent: "chat" });
  const young = await outlive.start({ agent: "a", input: 2 }, { intent: "chat" });
  await all(old);
  await young.leave();
  server.faults = [submitted("attached"), right];
  assert.deepEqual(await all(await client(server, { storage: store }).resume("chat")), WHOLE);
  assert.equal(JSON.parse(server.requests[2].body).input, 2);
});

test("an intent is forgotten when it can never succeed, and kept for a user who has to log in", async () => {
  const store = storage();
  const server = await misbehaving([waiting, problem(401, "unauthorized"), problem(404, "not_found")]);
  await (await client(server, { storage: store }).start({ agent: "a" }, { intent: "chat" })).leave();
  await assert.rejects(client(server, { storage: store }).resume("chat"), { status: 401 });
  await assert.rejects(client(server, { storage: store }).resume("chat"), { status: 404 });
  assert.equal(await client(server, { storage: store }).resume("chat"), null);
});

test("what others wrote into the storage is no intent", async () => {
  for (const text of ["", "{", "null", "7", '{"key":1,"body":"{}"}', '{"key":"k"}']) {
    const outlive = new Outlive({ url: "http://127.0.0.1:1", storage: { ...storage(), getItem: () => text } });
    assert.equal(await outlive.resume("chat"), null);
  }
});

test("a storage that is full or forbidden costs only the reload", async () => {
  const full = { ...storage(), setItem: () => assert.fail("QuotaExceededError") };
  const server = await misbehaving([waiting, waiting]);
  const outlive = client(server, { storage: full });
  for (const _ of [1, 2]) await (await outlive.start({ agent: "a" }, { intent: "chat" })).leave();
  assert.equal(server.requests[0].headers["idempotency-key"], server.requests[1].headers["idempotency-key"]);
});

// ------------------------------------------------------------ strange days

test("clocks that jump change nothing", async (context) => {
  const real = Date.now;
  let years = 0;
  context.mock.method(Date, "now", () => real() + (years = 10 - years) * 3.2e10 * (Math.random() < 0.5 ? 1 : -1));
  const { seen, server } = await follow([cut(200, "closed"), cut(300, "reset")]);
  assert.deepEqual(seen, WHOLE);
  assert.equal(server.requests.length, 3);
});

test("an event of 10 MB, thousands of tiny pieces and thousands of events in one arrive as they are", async () => {
  const big = "é".repeat(5 * 1024 * 1024);
  const many = Array.from({ length: 5_000 }, (_, at) => at);
  const pieces = async (socket, frames) => {
    socket.setNoDelay(true);
    socket.write(`${HEAD}\r\n`);
    for (const byte of Buffer.from(frames.slice(0, 100).join(""))) socket.write(Buffer.of(byte));
    socket.end(frames.slice(100).join(""));
  };
  const { seen } = await follow([pieces], { frames: log([...many, big]) });
  assert.deepEqual(seen, ["attempt", ...many, big, "succeeded"]);
});

test("a handler is called for an event of its name only, whatever names the server invents", async () => {
  const frames = ["toString", "constructor", "__proto__", "hasOwnProperty"].map((name, at) => frame(at + 1, name, 1));
  frames.push(frame(5, "end", { state: "succeeded" }));
  const server = await misbehaving([], frames);
  assert.equal((await client(server).follow(RUN).each({})).data.state, "succeeded");
});

test("an event without an end is not waited for without end", async () => {
  const endless = (socket) => {
    socket.write(`${HEAD}\r\ndata: `);
    const more = () => socket.write("x".repeat(65_536), (error) => error || setImmediate(more));
    more();
  };
  const server = await misbehaving([endless]);
  const stream = client(server, { longestEvent: 1_000_000 }).follow(RUN);
  await assert.rejects(within(all(stream), "an error"), { code: "event_too_large" });
  await gone(server);
});

test("a stream that never ends is read as long as it is wanted, and in little memory", async () => {
  let wake = () => {};
  const endless = async (socket) => {
    socket.on("drain", () => wake()).on("close", () => wake());
    socket.write(`${HEAD}\r\n`);
    for (let seq = 1; !socket.destroyed; seq += 1) {
      if (!socket.write(frame(seq, "chunk", "x".repeat(10_000)))) {
        await new Promise((resolve) => {
          wake = resolve;
        });
      }
    }
  };
  const server = await misbehaving([endless]);
  let count = 0;
  for await (const event of client(server).follow(RUN)) {
    count += 1;
    if (event.seq === 4_000) break;
  }
  assert.equal(count, 4_000);
  assert.ok(process.memoryUsage().rss < 600 * 1024 * 1024);
  await gone(server);
});

test("noise where events should be is skipped or refused, never an exception of another kind", async () => {
  const rounds = Array.from({ length: 30 }, async () => {
    const noise = Buffer.from(Array.from({ length: 300 }, () => Math.floor(Math.random() * 256)));
    const noisy = (socket) => socket.end(Buffer.concat([Buffer.from(`${HEAD}\r\n`), noise]));
    const { seen } = await follow([noisy]);
    assert.deepEqual(seen, WHOLE, `after ${noise.toString("hex")}`);
  });
  await Promise.all(rounds);
});
