/** The hook of `@langchain/langgraph-sdk/react`. */
import "./page.mjs";
import { scenarios } from "./scenarios.mjs";

const { useStream } = await import("@langchain/langgraph-sdk/react");

scenarios("the hook of the SDK", {
  use: useStream,
  options: { fetchStateHistory: true, reconnectOnMount: true },
  cuts: { "every connection after some bytes": { bytes: 2000 }, "every second": { every: 1000 } },
  resume: (stream, resume) => stream.submit(undefined, { command: { resume } }),
  fork: (stream, input, checkpoint) => stream.submit(input, { checkpoint }),
});
