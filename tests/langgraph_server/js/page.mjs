/** A page, as far as the hooks need one: React in a document, and what it shows. */
import { JSDOM } from "jsdom";
import { within } from "../../client/dictation.mjs";

const { window } = new JSDOM("<!doctype html>", { url: "http://127.0.0.1/", pretendToBeVisual: true });
const { document, navigator, sessionStorage } = window;
for (const [name, value] of Object.entries({ window, document, navigator, sessionStorage })) {
  Object.defineProperty(globalThis, name, { value, configurable: true });
}
const { createElement, useLayoutEffect } = await import("react"); // by now it is in a page
const { createRoot } = await import("react-dom/client");

/** A component with one hook in it, which can be taken from the page and put there again. */
export class Mounted {
  #place = document.body.appendChild(document.createElement("ul"));
  #root = createRoot(this.#place);
  #awaited = new Set();
  /** What the hook has returned last. */
  stream;
  /** Every text that the last message had while the page was there. */
  texts = [];

  #options;
  #component;

  constructor(hook, options) {
    this.#component = this.#with(hook);
    this.become(options);
  }

  /** Show it with other options, as when the page's address has changed. */
  become(options) {
    this.#options = { ...this.#options, ...options };
    this.#root.render(createElement(this.#component, { options: this.#options }));
  }

  #with(hook) {
    return ({ options }) => {
      const stream = hook(options);
      useLayoutEffect(() => this.#seen(stream));
      return stream.messages.map((message, at) => createElement("li", { key: message.id ?? at }, text(message)));
    };
  }

  #seen(stream) {
    this.stream = stream;
    const last = stream.messages.map(text).at(-1);
    if (last !== this.texts.at(-1)) this.texts.push(last);
    for (const check of this.#awaited) queueMicrotask(check);
  }

  /** Wait until the page shows a state of the hook that is right; returns it. */
  until(isRight, what, limit) {
    let check;
    const right = new Promise((resolve) => {
      check = () => isRight(this.stream, this.shown) && resolve(this.stream);
      this.#awaited.add(check);
      if (this.stream) check();
    });
    const seen = within(right, what, limit).catch((error) => {
      throw new Error(`${error.message}; shown: ${JSON.stringify(this.shown)}, error: ${this.stream?.error}`);
    });
    return seen.finally(() => this.#awaited.delete(check));
  }

  /** What a reader sees, a line for each message. */
  get shown() {
    return [...this.#place.children].map((line) => line.textContent);
  }

  unmount() {
    this.#root.unmount();
    this.#place.remove();
  }
}

function text({ content }) {
  return typeof content === "string" ? content : content.map((part) => part.text ?? "").join("");
}
