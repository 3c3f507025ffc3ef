/** The client in a real browser: pages that are reloaded, left, frozen and cut off from the network. */
import assert from "node:assert/strict";
import fs from "node:fs/promises";
import { after, afterEach, before, test } from "node:test";
import { chromium } from "playwright-core";
import { Dictation, WITHIN } from "./dictation.mjs";
import { Serving } from "./serving.mjs";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"];
const QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"];

let server, dictation, browser, context;

before(async () => {
  const [app, html] = await documented();
  const yours = "from dictated import assistant as assistant\n";
  [server, dictation, browser] = await Promise.all([
    Serving.application({ "app.py": app, "page.html": html, "yours.py": yours }),
    Dictation.open(),
    chromium.launch({
      executablePath: process.env.BROWSER_FOR_TESTS || "/usr/bin/chromium",
      args: [...FLAGS, ...QUIET],
      ignoreDefaultArgs: ["--disable-back-forward-cache"],
    }),
  ]);
});

afterEach(async () => {
  await context?.close();
});

after(async () => {
  await browser?.close();
  await server?.close();
  dictation?.close();
});

/** The code that the documentation shows. */
async function documented() {
  const page = await fs.readFile(new URL("../../docs/client.md", import.meta.url), "utf8");
  return ["python", "html"].map((language) => new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\`$`, "ms").exec(page)[1]);
}

async function open(path) {
  context = await browser.newContext();
  context.setDefaultTimeout(WITHIN);
  const page = await context.newPage();
  await page.goto(server.url + path);
  return page;
}

const runs = async (page) => (await (await page.request.get(`${server.url}/runs`)).json()).runs;
const says = ([id, wanted]) => document.querySelector(id).textContent === wanted;
const shows = (page, text) => page.waitForFunction(says, ["#answer", text]);
const stateIs = (page, text) => page.waitForFunction(says, ["#state", text]);
const sees = (page, count) => page.waitForFunction((wanted) => window.seen?.length >= wanted, count);

async function kept() {
  const page = await open(`/pages/kept.html?port=${dictation.port}`);
  return [page, await dictation.attempt()];
}

/** The whole of a run that said these, as the page kept it. */
async function saw(page, chunks) {
  await page.waitForFunction(() => window.over);
  const said = chunks.map((chunk, at) => [at + 2, "chunk", chunk]);
  const expected = [[1, "attempt", undefined], ...said, [chunks.length + 2, "end", "succeeded"]];
  const seen = await page.evaluate(() => window.seen);
  assert.deepEqual(seen.map(([seq, type, data]) => [seq, type, type === "attempt" ? undefined : data]), expected);
}

test("the page of the documentation streams, goes on after a reload, and shows everything once", async () => {
  const page = await open("/");
  await page.fill("input", String(dictation.port));
  await page.click("text=Ask");
  const agent = await dictation.attempt();
  agent.say("one ", "two ");
  await shows(page, "one two ");
  await page.reload();
  await shows(page, "one two ");
  agent.say("three 🛫");
  await shows(page, "one two three 🛫");
  agent.end();
  await stateIs(page, "succeeded");
  assert.equal(await page.textContent("#answer"), "one two three 🛫");
  assert.equal((await runs(page)).length, 1);
  await page.reload();
  assert.equal(await page.textContent("#answer"), "");
});

test("a second click is no second run, and the button stops the run", async () => {
  const page = await open("/");
  const before = (await runs(page)).length;
  await page.fill("input", String(dictation.port));
  await page.dblclick("text=Ask");
  const agent = await dictation.attempt();
  agent.say("x");
  await shows(page, "x");
  await page.click("text=Stop");
  await stateIs(page, "stopped");
  assert.equal((await runs(page)).length, before + 1);
});

test("a page that keeps its cursor is reloaded again and again without a loss or a repetition", async () => {
  const [page, agent] = await kept();
  const chunks = [];
  for (const part of ["a", "b", "c"]) {
    for (const number of [1, 2, 3]) chunks.push(`${part}${number}`);
    agent.say(...chunks.slice(-3));
    await sees(page, chunks.length + 1 - (part === "b" ? 2 : 0)); // once before all of it is there
    await page.reload();
  }
  agent.say("last");
  agent.end();
  await saw(page, [...chunks, "last"]);
  assert.equal(await page.evaluate(() => window.loads), 4);
});

test("a page that goes offline and comes back misses nothing", async () => {
  const [page, agent] = await kept();
  agent.say("before");
  await sees(page, 2);
  await context.setOffline(true);
  agent.say("meanwhile");
  await page.waitForFunction(() => navigator.onLine === false);
  await context.setOffline(false);
  await page.waitForFunction(() => window.states.filter((state) => state === "open").length === 2);
  await sees(page, 3);
  agent.say("after");
  agent.end();
  await saw(page, ["before", "meanwhile", "after"]);
});

test("a page whose connection dies while it is offline waits, and goes on when it is online", async () => {
  const [page, agent] = await kept();
  agent.say("before");
  await sees(page, 2);
  await context.setOffline(true);
  await page.waitForFunction(() => navigator.onLine === false);
  await server.end("SIGKILL");
  await page.waitForFunction(() => window.states.at(-1) === "waiting");
  await server.begin();
  await context.setOffline(false);
  const again = await dictation.attempt();
  again.say("after");
  again.end();
  await page.waitForFunction(() => window.over);
  const seen = await page.evaluate(() => window.seen);
  assert.deepEqual(seen.map(([, type]) => type), ["attempt", "chunk", "restart", "chunk", "end"]);
  assert.deepEqual(seen.map(([seq]) => seq), [1, 2, 3, 4, 5]);
});

test("a page that starts offline waits for the network", async () => {
  const page = await open("/");
  await page.fill("input", String(dictation.port));
  await context.setOffline(true);
  await page.click("text=Ask");
  await page.evaluate(() => new Promise((resolve) => setTimeout(resolve, 0)));
  await context.setOffline(false);
  const agent = await dictation.attempt();
  agent.say("there");
  await shows(page, "there");
  agent.end();
  await stateIs(page, "succeeded");
});

test("two tabs follow one run, and closing one leaves the other alone", async () => {
  const [page, agent] = await kept();
  agent.say("one");
  await sees(page, 2);
  const other = await context.newPage();
  await other.goto(`${server.url}/health`);
  await other.evaluate(async (run) => {
    const { Outlive } = await import("/outlive/outlive.js");
    window.seen = [];
    new Outlive().follow(run).each({ chunk: ({ data }) => window.seen.push(data) });
  }, agent.run);
  await other.waitForFunction(() => window.seen.length === 1);
  agent.say("two");
  await other.waitForFunction(() => window.seen.join() === "one,two");
  await other.close();
  agent.say("three");
  agent.end();
  await saw(page, ["one", "two", "three"]);
});

test("a page in the browser's cache lets go of its connection, and goes on when it is shown again", async () => {
  const [page, agent] = await kept();
  agent.say("one");
  await sees(page, 2);
  await page.evaluate(() => {
    window.shown = [];
    addEventListener("pageshow", (event) => window.shown.push(event.persisted));
  });
  await page.goto(`${server.url}/health`);
  agent.say("meanwhile");
  await page.goBack({ waitUntil: "commit" });
  await sees(page, 3);
  assert.deepEqual(await page.evaluate(() => window.shown), [true]); // it was not loaded again
  agent.say("two");
  agent.end();
  await saw(page, ["one", "meanwhile", "two"]);
});

test("a page that was frozen goes on", async () => {
  const [page, agent] = await kept();
  agent.say("one");
  await sees(page, 2);
  const devtools = await context.newCDPSession(page);
  await devtools.send("Page.setWebLifecycleState", { state: "frozen" });
  agent.say("meanwhile");
  await devtools.send("Page.setWebLifecycleState", { state: "active" });
  await sees(page, 3);
  agent.say("two");
  agent.end();
  await saw(page, ["one", "meanwhile", "two"]);
});

test("a page that wakes up does not trust a connection of which it has heard nothing", async () => {
  const [page, agent] = await kept();
  agent.say("one");
  await sees(page, 2);
  const states = await page.evaluate(() => {
    const before = window.states.length;
    document.dispatchEvent(new Event("visibilitychange", { bubbles: true })); // heard of a moment ago: it is kept
    const calm = window.states.length;
    const now = Date.now;
    Date.now = () => now() + 60_000;
    document.dispatchEvent(new Event("visibilitychange", { bubbles: true }));
    return [before, calm];
  });
  assert.equal(states[0], states[1]);
  await page.waitForFunction((count) => window.states.length > count + 2 && window.states.at(-1) === "open", states[1]);
  agent.say("two");
  agent.end();
  await saw(page, ["one", "two"]);
});

test("a handler of one's own is followed in the same way", async () => {
  const page = await open("/health");
  const following = page.evaluate(async (port) => {
    const { Outlive } = await import("/outlive/outlive.js");
    const outlive = new Outlive({ delay: 50 });
    const seen = [];
    const options = { to: "/chat", intent: "chat" };
    const first = await outlive.start({ text: port }, options);
    for await (const event of first) {
      seen.push([event.type, event.data]);
      if (event.data === "one") break;
    }
    const second = await outlive.resume("chat", { after: first.cursor });
    await second.each({
      chunk: ({ data }) => {
        seen.push(["chunk", data]);
        if (data === "two") window.dispatchEvent(new Event("online")); // cuts the connection
      },
    });
    return [seen.slice(1), first.id === second.id, second.admitted];
  }, String(dictation.port));
  const agent = await dictation.attempt();
  agent.say("one", "two");
  await page.waitForFunction(() => performance.getEntriesByName(`${location.origin}/chat`).length >= 2);
  agent.say("three");
  agent.end();
  const chunks = ["one", "two", "three"].map((text) => ["chunk", text]);
  assert.deepEqual(await following, [chunks, true, "attached"]);
});

test("a page of another origin follows too, with what the documentation says to allow", async () => {
  const page = await open("/health");
  await page.goto(`${server.url.replace("127.0.0.1", "localhost")}/health`);
  const following = page.evaluate(
    async ([url, port]) => {
      const { Outlive } = await import(`${url}/outlive/outlive.js`);
      const outlive = new Outlive({ url });
      const stream = await outlive.start({ agent: "assistant", input: port });
      const named = [stream.id.length, stream.admitted];
      const end = await stream.each({});
      const rest = [];
      for await (const event of outlive.follow(stream.id, { after: `${stream.id}:1` })) rest.push(event.type);
      return [...named, end.data.state, ...rest, location.origin === url];
    },
    [server.url, dictation.port],
  );
  const agent = await dictation.attempt();
  agent.say("x");
  agent.end();
  assert.deepEqual(await following, [32, "created", "succeeded", "chunk", "end", false]);
});
