/** What happens to a page that streams, the same for each of the hooks; see the files that use it. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Dictation, within } from "../../client/dictation.mjs";
import { Cutting } from "./cutting.mjs";
import { Mounted } from "./page.mjs";
import { Served } from "./serving.mjs";

const human = (content) => ({ type: "human", content });
const same = (shown, lines) => JSON.stringify(shown) === JSON.stringify(lines);
const idle = (stream) => !stream.isLoading;

/** One test's page, server, proxy and dictation; everything is closed at its end. */
class Stage {
  #hook;
  pages = [];
  thread;

  constructor(hook, server) {
    this.#hook = hook;
    this.server = server;
  }

  static async set(t, hook, server, how = {}) {
    const made = new Stage(hook, server);
    [made.proxy, made.dictation] = await Promise.all([Cutting.open(server.url, how), Dictation.open()]);
    t.after(() => made.close());
    return made;
  }

  /** A page, on the thread of the first one if that has made one. */
  page(options = {}) {
    const onThreadId = (thread) => (this.thread = thread);
    const known = this.thread ? { threadId: this.thread } : {};
    const page = new Mounted(this.#hook.use, {
      apiUrl: this.proxy.url, assistantId: "chat", ...this.#hook.options, onThreadId, ...known, ...options,
    });
    page.thread = () => this.thread;
    this.pages.push(page);
    return page;
  }

  async ready(options) {
    const page = this.page(options);
    await page.until((stream) => idle(stream) && !stream.isThreadLoading, "the page");
    return page;
  }

  /** Submit a message whose answer is dictated; returns what is submitted, and who dictates. */
  async ask(page, content = "hello", more = {}) {
    const submitted = page.stream.submit({ messages: [human(content)], port: this.dictation.port, ...more });
    return [submitted, await this.dictation.attempt()];
  }

  async executed(expected) {
    assert.deepEqual(await this.server.executed(this.thread), expected);
  }

  close() {
    for (const page of this.pages) page.unmount();
    this.dictation.close();
    this.proxy.close();
  }
}

/** Say words one by one, each once it is shown. */
async function dictate(page, agent, words) {
  let said = page.shown.at(-1) ?? "";
  if (said === page.shown[0]) said = "";
  for (const word of words) {
    agent.say(word);
    said += word;
    await page.until((_, shown) => shown.at(-1) === said, `the word ${word}`);
  }
}

/** The run is over: the page shows these lines, and they are the thread's own, each once. */
async function ends(page, lines, submitted) {
  await within(Promise.resolve(submitted), "the end of submit");
  await page.until((stream, shown) => idle(stream) && same(shown, lines), "the end");
  const { client, messages } = page.stream;
  const [last] = await client.runs.list(page.thread());
  await client.runs.join(page.thread(), last.run_id); // a page may take an earlier end for this one
  const { values } = await client.threads.getState(page.thread());
  assert.deepEqual(messages.map(({ id }) => id), values.messages.map(({ id }) => id));
  assert.deepEqual(values.messages.map(({ content }) => content), lines);
}

const WORDS = ["one ", "two ", "three ", "four ", "five"];
const WHOLE = ["hello", WORDS.join("")];

export { WHOLE, WORDS, dictate, ends };

/** Put a hook through all of it; `more` declares tests of its own, each with a stage for a hook. */
export function scenarios(name, hook, more = () => {}) {
  let server;
  before(async () => (server = await Served.open()));
  after(() => server?.close());
  const set = (t, how) => Stage.set(t, hook, server, how);

  describe(name, { concurrency: true }, () => {
    more((t, other) => Stage.set(t, other, server));

    test("an answer is shown as it comes", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [submitted, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS);
      agent.end();
      await ends(page, WHOLE, submitted);
      assert.equal(page.stream.error, undefined);
      await stage.executed(["charge", "model"]);
    });

    test("a question is shown, and its answer goes on behind it", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [submitted, agent] = await stage.ask(page, "hello", { ask: true });
      await dictate(page, agent, WORDS);
      agent.end();
      await submitted;
      await page.until((stream) => idle(stream) && stream.interrupt, "the question");
      assert.deepEqual(page.stream.interrupt.value, { question: "go on?" });
      assert.deepEqual(page.shown, WHOLE);
      await ends(page, [...WHOLE, "heard yes"], hook.resume(page.stream, "yes"));
      await page.until((stream) => !stream.interrupt, "no question");
      await stage.executed(["charge", "model", "ask"]);
    });

    test("a question is still there after a reload", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [submitted, agent] = await stage.ask(page, "hello", { ask: true });
      await dictate(page, agent, WORDS);
      agent.end();
      await submitted;
      page.unmount();
      const again = stage.page();
      await again.until((stream, shown) => idle(stream) && stream.interrupt && same(shown, WHOLE), "the question");
      await ends(again, [...WHOLE, "heard yes"], hook.resume(again.stream, "yes", again.stream.interrupt.id));
      await stage.executed(["charge", "model", "ask"]);
    });

    test("a failure is shown, and so is what was said before it", async (t) => {
      t.mock.method(console, "error", () => {});
      const stage = await set(t);
      const page = await stage.ready();
      const [submitted, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS.slice(0, 2));
      agent.say({ fail: "out of words" });
      agent.end();
      await submitted;
      await page.until((stream) => idle(stream) && stream.error, "the error");
      assert.match(page.stream.error.message, /ValueError/);
      assert.equal(page.shown[0], "hello");
      await stage.executed(["charge"]);
    });

    test("stop ends the run on the server too", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [submitted, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS.slice(0, 2));
      await within(Promise.all([page.stream.stop(), submitted]), "the stop");
      await within(agent.left, "the end of the model");
      await page.until(idle, "an idle page");
      const [run] = await page.stream.client.runs.list(stage.thread);
      await within(page.stream.client.runs.join(stage.thread, run.run_id), "the run");
      assert.equal((await page.stream.client.runs.get(stage.thread, run.run_id)).status, "interrupted");
      await stage.executed(["charge"]);
    });

    test("after a stop the next message first finishes what was begun", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [submitted, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS.slice(0, 2));
      await within(Promise.all([page.stream.stop(), submitted, agent.left]), "the stop");
      await page.until(idle, "an idle page");
      const [next, first] = await stage.ask(page, "and?");
      first.say("finished");
      first.end();
      const second = await stage.dictation.attempt();
      second.say("answered");
      second.end();
      await ends(page, ["hello", "finished", "and?", "answered"], next);
      await stage.executed(["charge", "model", "charge", "model"]);
    });

    test("a reload in the midst of an answer shows all of it", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS.slice(0, 2));
      page.unmount();
      agent.say(WORDS[2]);
      const again = stage.page();
      await again.until((_, shown) => shown.at(-1) === "one two three ", "what was said before");
      await dictate(again, agent, WORDS.slice(3));
      agent.end();
      await ends(again, WHOLE);
      await stage.executed(["charge", "model"]);
    });

    test("two tabs show the same run", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [submitted, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS.slice(0, 2));
      const other = stage.page();
      await other.until((_, shown) => shown.at(-1) === "one two ", "what was said before");
      await dictate(page, agent, WORDS.slice(2));
      agent.end();
      await Promise.all([ends(page, WHOLE, submitted), ends(other, WHOLE)]);
      await stage.executed(["charge", "model"]);
    });

    test("a second message is answered after the first", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [first, one] = await stage.ask(page);
      await dictate(page, one, WORDS.slice(0, 2));
      const second = page.stream.submit({ messages: [human("and?")] }, { multitaskStrategy: "enqueue" });
      one.say(...WORDS.slice(2));
      one.end();
      const two = await stage.dictation.attempt();
      two.say("that");
      two.end();
      await within(Promise.all([first, second]), "both");
      await ends(page, [...WHOLE, "and?", "that"]);
      await stage.executed(["charge", "model", "charge", "model"]);
    });

    test("a message that interrupts is answered in place of the first", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [first, one] = await stage.ask(page);
      await dictate(page, one, WORDS.slice(0, 2));
      const second = page.stream.submit({ messages: [human("and?")] }, { multitaskStrategy: "interrupt" });
      await within(one.left, "the end of the model");
      const two = await stage.dictation.attempt();
      two.say("that");
      two.end();
      await within(Promise.all([first, second]), "both");
      await ends(page, ["hello", "and?", "that"]);
      await stage.executed(["charge", "charge", "model"]);
    });

    test("another tab's message is shown in both", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [first, one] = await stage.ask(page);
      one.say(...WORDS);
      one.end();
      await ends(page, WHOLE, first);
      const other = await stage.ready();
      const [second, two] = await stage.ask(other, "and?");
      two.say("that");
      two.end();
      await ends(other, [...WHOLE, "and?", "that"], second);
      const shown = hook.follows ? page : await stage.ready();
      await ends(shown, [...WHOLE, "and?", "that"]);
      await stage.executed(["charge", "model", "charge", "model"]);
    });

    test("another answer to the same message is another branch", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [first, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS);
      agent.end();
      await ends(page, WHOLE, first);
      const history = await page.stream.client.threads.getHistory(stage.thread);
      const before = history.find(({ next }) => next.includes("model"));
      const second = hook.fork(page.stream, undefined, before.checkpoint);
      const other = await stage.dictation.attempt();
      other.say("no");
      other.end();
      await ends(page, ["hello", "no"], second);
      await stage.executed(["charge", "model", "model"]);
    });

    for (const [how, cut] of Object.entries(hook.cuts)) {
      test(`an answer is whole over a proxy that cuts ${how}`, async (t) => {
        const stage = await set(t);
        const page = await stage.ready();
        if (!cut.every) Object.assign(stage.proxy, cut);
        const [submitted, agent] = await stage.ask(page);
        for (const word of WORDS) {
          await dictate(page, agent, [word]);
          if (cut.every && stage.proxy.every) await stage.proxy.another();
          else if (cut.every) stage.proxy.begin(cut.every);
        }
        agent.end();
        await within(submitted, "the end of submit");
        Object.assign(stage.proxy, { bytes: Infinity, every: null });
        await ends(page, WHOLE);
        assert.ok(stage.proxy.cuts > 2, `${stage.proxy.cuts} cuts`);
        await stage.executed(["charge", "model"]);
      });
    }

    test("an answer is whole after a time offline", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [submitted, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS.slice(0, 2));
      const back = stage.proxy.offline();
      agent.say(WORDS[2]);
      await back;
      await page.until((_, shown) => shown.at(-1) === "one two three ", "what was said meanwhile");
      await dictate(page, agent, WORDS.slice(3));
      agent.end();
      await ends(page, WHOLE, submitted);
      await stage.executed(["charge", "model"]);
    });

    test("an answer that ended while the page was offline is whole", async (t) => {
      const stage = await set(t);
      const page = await stage.ready();
      const [submitted, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS.slice(0, 2));
      const back = stage.proxy.offline();
      agent.say(...WORDS.slice(2));
      agent.end();
      await back;
      await ends(page, WHOLE, submitted);
      await stage.executed(["charge", "model"]);
    });

    if (hook.impatient) test("a page that has given up is whole after a reload", async (t) => {
      t.mock.method(console, "error", () => {});
      const stage = await set(t);
      const page = await stage.ready(hook.impatient);
      const [submitted, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS.slice(0, 2));
      stage.proxy.away();
      agent.say(...WORDS.slice(2));
      agent.end();
      await within(submitted, "the end of submit");
      await page.until((stream) => idle(stream) && stream.error, "the error");
      assert.deepEqual(page.shown, ["hello", "one two "]);
      page.unmount();
      stage.proxy.online = true;
      await ends(stage.page(), WHOLE);
      await stage.executed(["charge", "model"]);
    });

    test("an answer is whole after its server was killed", async (t) => {
      const own = await Served.open();
      t.after(() => own.close());
      const stage = await Stage.set(t, hook, own);
      const page = await stage.ready({ apiUrl: own.url });
      const [submitted, agent] = await stage.ask(page);
      await dictate(page, agent, WORDS.slice(0, 2));
      await own.end("SIGKILL");
      await own.begin();
      const again = await stage.dictation.attempt();
      again.say(...WORDS);
      again.end();
      await ends(page, WHOLE, submitted);
      await stage.executed(["charge", "model"]);
    });
  });
}
