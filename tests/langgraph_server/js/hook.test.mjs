/** The hook of `@langchain/react`. */
import "./page.mjs";
import { scenarios } from "./scenarios.mjs";

const { useStream } = await import("@langchain/react");

scenarios("the hook of its own package", {
  use: useStream,
  options: {},
  impatient: { maxReconnectAttempts: 1 },
  follows: true, // a page hears of the runs of others
  cuts: { "connections after some bytes": { bytes: 2000, times: 3 }, "every second": { every: 1000 } },
  resume: (stream, response, id) => stream.respond(response, id && { interruptId: id }),
  fork: (stream, input, checkpoint) => stream.submit(input, { forkFrom: checkpoint.checkpoint_id }),
});
