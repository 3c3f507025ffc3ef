/** Tells of one session of the SDK's hook whose stream is cut three times: node cut_three_times.mjs */
import { Mounted } from "./page.mjs";
import { Dictation } from "../../client/dictation.mjs";
import { Cutting } from "./cutting.mjs";
import { Served } from "./serving.mjs";

const { useStream } = await import("@langchain/langgraph-sdk/react");
const short = (text) => text.replace(/([0-9a-f]{8})(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}/g, "$1");
const tell = (who, what) => console.log(`${who.padEnd(7)} ${short(what)}`);

const [server, dictation] = await Promise.all([Served.open(), Dictation.open()]);
const proxy = await Cutting.open(server.url);
proxy.onRequest = (method, path, after) => tell("request", `${method} ${path}${after ? `, Last-Event-ID ${after}` : ""}`);

let thread;
const page = new Mounted(useStream, {
  apiUrl: proxy.url, assistantId: "chat", reconnectOnMount: true, onThreadId: (id) => (thread = id),
});
await page.until((stream) => !stream.isLoading, "the page");
const input = { messages: [{ type: "human", content: "Count to four." }], port: dictation.port };
const submitted = page.stream.submit(input);
const model = await dictation.attempt();

for (const word of ["one", " two", " three", " four"]) {
  tell("model", `says "${word}"`);
  model.say(word);
  await page.until((_, shown) => shown.at(-1).endsWith(word), word);
  tell("page", `shows ${JSON.stringify(page.shown.at(-1))}`);
  if (word === " four") break;
  proxy.cut();
  tell("proxy", "cuts the stream");
}
model.end();
await submitted;
tell("page", `is at rest and shows ${JSON.stringify(page.shown)}`);
const { values } = await page.stream.client.threads.getState(thread);
tell("server", `has ${JSON.stringify(values.messages.map(({ content }) => content))}, after ${await server.executed(thread)}`);
page.unmount();
dictation.close();
proxy.close();
await server.close();
process.exit();
