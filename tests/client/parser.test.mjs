/** Server-sent events by the rules of the HTML standard, however the bytes are cut. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser, OutliveError } from "../../src/outlive/client/outlive.js";

const bytes = (text) => new TextEncoder().encode(text);

function parse(pieces, limit) {
  const parser = new EventParser(limit);
  const events = pieces.flatMap((piece) => parser.push(piece));
  return { events, retry: parser.retry, lastEventId: parser.lastEventId };
}

const event = (data, id = "", type = "message") => ({ type, data, id });

/** [what it is, the stream, its events, its last id, its retry] */
const RULES = [
  ["LF ends lines", "data: a\n\ndata: b\n\n", [event("a"), event("b")]],
  ["CR ends lines", "data: a\r\rdata: b\r\r", [event("a"), event("b")]],
  ["CRLF ends lines", "data: a\r\n\r\ndata: b\r\n\r\n", [event("a"), event("b")]],
  ["CRLF is one end, not two", "data: a\r\ndata: b\r\nid: 1\r\n\r\n", [event("a\nb", "1")], "1"],
  ["line ends are mixed", "data: a\r\n\ndata: b\r\rdata: c\n\r\n", [event("a"), event("b"), event("c")]],
  ["no other character ends a line", "data: \u2028\u2029\u0085\v\f\u001c\n\n", [event("\u2028\u2029\u0085\v\f\u001c")]],
  ["one BOM is dropped", "\uFEFFdata: a\n\n", [event("a")]],
  ["a second BOM is a part of a name", "\uFEFF\uFEFFdata: a\n\ndata: b\n\n", [event("b")]],
  ["a BOM later is text", "data: \uFEFFa\n\n", [event("\uFEFFa")]],
  ["lines of data are joined", "data: a\ndata:\ndata: b\n\n", [event("a\n\nb")]],
  ["one space is dropped", "data:a\ndata:  b\n\n", [event("a\n b")]],
  ["a name without a colon has no value", "data\n\ndata\ndata\n\n", [event(""), event("\n")]],
  ["an empty value is a value", "data:\n\n", [event("")]],
  ["the first colon counts", "data: a: b\n\n", [event("a: b")]],
  ["comments are nothing", ": hello\n:\ndata: a\n:data: b\n\n", [event("a")]],
  ["unknown names are nothing", "dat: a\nDATA: b\n data: c\ndata : d\ndata: e\n\n", [event("e")]],
  ["a type is for one event", "event: x\ndata: a\n\ndata: b\n\n", [event("a", "", "x"), event("b")]],
  ["a type without data is nothing", "event: x\n\ndata: a\n\n", [event("a")]],
  ["the last type counts", "event: x\nevent: y\ndata: a\n\n", [event("a", "", "y")]],
  ["an id stays", "id: 1\ndata: a\n\ndata: b\n\n", [event("a", "1"), event("b", "1")], "1"],
  ["an empty id takes it away", "id: 1\ndata: a\n\nid\ndata: b\n\n", [event("a", "1"), event("b")], ""],
  ["an id with NULL is nothing", "id: 1\ndata: a\n\nid: 2\0\ndata: b\n\n", [event("a", "1"), event("b", "1")], "1"],
  ["an id without data counts", "id: 7\n\n", [], "7"],
  ["an id without the end of its event does not", "id: 7\n", [], ""],
  ["an event without an end is none", "data: a\n\ndata: b\n", [event("a")]],
  ["a line without an end is none", "data: a\n\ndata: b", [event("a")]],
  ["retry is digits", "retry: 250\n\n", [], "", 250],
  ["retry needs no end of an event", "retry: 250\n", [], "", 250],
  ["retry with anything else is nothing", "retry: 1\nretry: 2s\nretry: -3\nretry: 1.5\nretry:\n\n", [], "", 1],
  ["characters of every length", "data: aé☃🛫\nid: 🛫\n\n", [event("aé☃🛫", "🛫")], "🛫"],
];

for (const [name, text, events, lastEventId = "", retry] of RULES) {
  test(`${name}, whole, byte by byte and cut anywhere`, () => {
    const all = bytes(text);
    const expected = { events, retry, lastEventId };
    assert.deepEqual(parse([all]), expected);
    assert.deepEqual(parse(Array.from(all, (_, at) => all.subarray(at, at + 1))), expected);
    for (let cut = 0; cut <= all.length; cut += 1) {
      assert.deepEqual(parse([all.subarray(0, cut), new Uint8Array(), all.subarray(cut)]), expected);
    }
  });
}

test("bytes that are no UTF-8 become U+FFFD and harm nothing else", () => {
  const broken = [...bytes("data: "), 0xff, 0xc3, 0x28, 0xf0, 0x9f, ...bytes("\n\ndata: ok\n\n")];
  const { events } = parse([Uint8Array.from(broken)]);
  assert.deepEqual(events, [event("\uFFFD\uFFFD(\uFFFD"), event("ok")]);
});

test("random bytes are never an exception", () => {
  for (let round = 0; round < 300; round += 1) {
    const alphabet = bytes("data:id:event:retry: \n\r\0\uFEFF:1é");
    const noise = Uint8Array.from({ length: 200 }, () =>
      Math.random() < 0.8 ? alphabet[Math.floor(Math.random() * alphabet.length)] : Math.floor(Math.random() * 256),
    );
    const pieces = [];
    for (let at = 0; at < noise.length; ) {
      const next = at + Math.floor(Math.random() * 20);
      pieces.push(noise.subarray(at, next));
      at = next;
    }
    assert.deepEqual(parse(pieces), parse([noise]), `of ${noise}`);
  }
});

test("an event of 10 MB in thousands of pieces is read in a time that grows with its length only", () => {
  const size = 10 * 1024 * 1024;
  const all = bytes(`data: ${"x".repeat(size)}\n\n`);
  const cut = (step) =>
    Array.from({ length: Math.ceil(all.length / step) }, (_, n) => all.subarray(n * step, (n + 1) * step));
  const used = (pieces) => {
    const before = process.cpuUsage();
    const { events } = parse(pieces);
    assert.equal(events[0].data.length, size);
    const { user, system } = process.cpuUsage(before);
    return user + system;
  };
  const large = used(cut(65_536));
  // Searched from its start again for each piece it would be a thousand times as much, not some.
  assert.ok(used(cut(512)) < 100 * large + 1_000_000);
});

test("an event that never ends is given up at a limit", () => {
  const pieces = (text) => Array.from({ length: 100 }, () => bytes(text));
  const refused = (error) => error instanceof OutliveError && error.code === "event_too_large" && !error.transient;
  assert.throws(() => parse(pieces("x".repeat(100)), 5_000), refused);
  assert.throws(() => parse(pieces(`data: ${"x".repeat(100)}\n`), 5_000), refused);
  assert.equal(parse(pieces(`data: ${"x".repeat(100)}\n\n`), 5_000).events.length, 100);
});
