// What a caller writes, for the checker of types: nothing here is ever run.
import { Outlive, OutliveError } from "../../src/outlive/client/outlive.js";

const outlive = new Outlive({ url: "https://example.org/api", headers: async () => ({ Authorization: "Bearer x" }) });

export async function right() {
  const stream = await outlive.start({ agent: "assistant", input: { text: "hi" } }, { intent: "chat" });
  for await (const event of stream) {
    /** @type {number} */
    const seq = event.seq;
    if (event.type === "chunk") console.log(seq, event.data.text);
  }
  const end = await stream.each({ chunk: ({ mode }) => mode?.length, restart: async ({ epoch }) => epoch + 1 });
  console.log(end?.data.state, stream.cursor.length, (await stream.stop()).outcome);
  const { runs, before } = await outlive.list({ state: "running", before: undefined });
  const resumed = await outlive.resume("chat", { after: stream.cursor, gaps: "skip", signal: AbortSignal.timeout(1) });
  const own = await outlive.start({ text: "hi" }, { to: "/chat" });
  const error = new OutliveError({ code: "x" });
  return [own.id, runs[0]?.run_id, before?.length, resumed?.id, error.retryAfter, error.runId?.length];
}

export async function wrong() {
  // @ts-expect-error the agent is missing
  await outlive.start({ input: 1 });
  // @ts-expect-error a word that is no policy
  await outlive.start({ agent: "a", on_disconnect: "stop" });
  // @ts-expect-error a run is named by its id
  outlive.follow(7);
  // @ts-expect-error there is no such option
  outlive.follow("run", { from: 3 });
  // @ts-expect-error there may be nothing to resume
  (await outlive.resume("chat")).id;
  // @ts-expect-error there is no such event
  await outlive.follow("run").each({ chunks: () => {} });
  // @ts-expect-error it is a list of runs
  (await outlive.list()).run_id;
}
