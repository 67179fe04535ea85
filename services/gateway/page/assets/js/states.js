// What a part of a view shows before, or instead of, its data.

import { h, put } from "./dom.js";
import { askAgain, left } from "./api.js";
import { sentence } from "./text.js";

/** Return lines that stand for what is on its way. */
export function loading(what, lines = 3) {
  return h("div", { class: "state loading", role: "status" }, h("span", { class: "unseen" }, `Loading ${what}`), Array.from({ length: lines }, () => h("div", { class: "bone", "aria-hidden": "true" })));
}

/** Return a sentence on a failure, with a way to try again. */
export function failed(error, retry) {
  return h(
    "div",
    { class: "state failed", role: "alert" },
    h("p", {}, sentence(error.message)),
    retry && h("button", { type: "button", on: { click: () => (askAgain(), retry()) } }, "Try again"),
  );
}

/** Return a sentence that says what to do where there is nothing yet. */
export function empty(title, ...what) {
  return h("div", { class: "state" }, h("h2", {}, title), h("p", {}, ...what));
}

/** Fill `host`: a loading state, then what `render` makes of what `fetch` returns, or an error. */
export async function fill(host, what, fetch, render, signal) {
  host.replaceChildren(loading(what));
  host.setAttribute("aria-busy", "true");
  try {
    const data = await fetch();
    if (signal.aborted) return null;
    const content = render(data);
    if (content) put(host, content);
    return data;
  } catch (error) {
    if (!left(error) && !signal.aborted) host.replaceChildren(failed(error, () => fill(host, what, fetch, render, signal)));
    if (!(error.status >= 0) && !left(error)) throw error;
    return null;
  } finally {
    host.removeAttribute("aria-busy");
  }
}
