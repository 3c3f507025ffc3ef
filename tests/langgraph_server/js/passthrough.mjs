/** What stands before the server in an application of Next.js: it hands on no more headers than these. */
import { once } from "node:events";
import http from "node:http";
import { Readable } from "node:stream";

const HANDED_ON = /^(x-.*|authorization)$/;

export async function passthrough(target) {
  const server = http.createServer(async (request, response) => {
    const { method, headers, url } = request;
    const kept = Object.fromEntries(Object.entries(headers).filter(([name]) => HANDED_ON.test(name)));
    const body = ["GET", "HEAD"].includes(method) ? undefined : await text(request);
    const answer = await fetch(new URL(url.replace(/^\/api/, ""), target), { method, headers: kept, body });
    const told = Object.fromEntries([...answer.headers].filter(([name]) => !/^(content-encoding|content-length)$/.test(name)));
    response.writeHead(answer.status, told);
    if (answer.body) Readable.fromWeb(answer.body).on("error", () => response.destroy()).pipe(response);
    else response.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { url: `http://127.0.0.1:${server.address().port}/api`, close: () => server.closeAllConnections() ?? server.close() };
}

async function text(stream) {
  let all = "";
  for await (const piece of stream.setEncoding("utf8")) all += piece;
  return all;
}
