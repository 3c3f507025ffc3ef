/** The hook of `@langchain/react` over a WebSocket. */
import "./page.mjs";
import { WebSocket } from "ws";
import { scenarios } from "./scenarios.mjs";

const { useStream } = await import("@langchain/react");

scenarios("the hook of its own package, over a WebSocket", {
  use: useStream,
  options: { transport: "websocket", webSocketFactory: (to) => new WebSocket(to) },
  impatient: null, // once it gives up it says nothing, and waits
  follows: true,
  cuts: { "every second": { every: 1000 } }, // it does not come back from one while it subscribes again
  resume: (stream, response, id) => stream.respond(response, id && { interruptId: id }),
  fork: (stream, input, checkpoint) => stream.submit(input, { forkFrom: checkpoint.checkpoint_id }),
});
