// A segment's text with a colour for each token. The text is one text node: colours are ranges
// of it (the browser's custom highlights), so ten thousand tokens make no elements.

import { h, say } from "../dom.js";
import { fixed, signed } from "../format.js";
import { plain } from "../text.js";

const BUCKETS = 6;
const WORST = -5;

/** Return an element with the text and a line on the token under the pointer or the cursor. */
export function tokenHeat(tokens, signal) {
  const pieces = tokens.map((token) => plain(token.text));
  const starts = [];
  let length = 0;
  for (const piece of pieces) {
    starts.push(length);
    length += piece.length;
  }
  const text = document.createTextNode(pieces.join(""));
  const box = h("div", { class: "heat", tabindex: "0", role: "group", "aria-label": "Text with log-probs; left and right go from token to token" }, text);
  const line = h("p", { class: "token-line muted" }, "Point at a token, or use left and right.");
  colour(text, tokens, starts, pieces, signal);
  let at = -1;
  function show(index) {
    if (index === at || !tokens[index]) return;
    at = index;
    const token = tokens[index];
    const words = [`“${pieces[index].replace(/\n/g, "⏎")}”`, `log-prob ${shown(token.logprob)}`, `entropy ${shown(token.entropy)}`];
    if (token.sampled_logprob !== null && token.sampled_logprob !== undefined && token.sampled_logprob !== token.logprob) words.push(`as drawn ${shown(token.sampled_logprob)}`);
    line.textContent = `${words.join(" · ")} · id ${token.id}`;
    range("token-at", text, starts[index], starts[index] + pieces[index].length);
  }
  box.addEventListener("pointermove", (event) => {
    const offset = offsetAt(event.clientX, event.clientY, text);
    if (offset !== null) show(indexOf(starts, offset));
  });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    show(Math.min(tokens.length - 1, Math.max(0, at + step)));
    say(line.textContent);
  });
  return [box, scaleLine(), line];
}

function shown(value) {
  return value === null || value === undefined ? "none" : fixed(value, 3).replace("-", "−");
}

function scaleLine() {
  return h("p", { class: "heat-scale muted", "aria-hidden": "true" }, "likely", h("span", {}, Array.from({ length: BUCKETS }, (_, bucket) => h("i", { class: `h${bucket}` }))), `unlikely (log-prob ${signed(WORST, 0)} or below)`);
}

function colour(text, tokens, starts, pieces, signal) {
  if (!globalThis.CSS?.highlights) return;
  const sets = Array.from({ length: BUCKETS }, () => new Highlight());
  tokens.forEach((token, index) => {
    if (token.logprob === null || token.logprob === undefined || !pieces[index].length) return;
    const bucket = Math.min(BUCKETS - 1, Math.floor((token.logprob / WORST) * BUCKETS));
    if (bucket > 0) sets[bucket].add(between(text, starts[index], starts[index] + pieces[index].length));
  });
  sets.forEach((set, bucket) => CSS.highlights.set(`heat-${bucket}`, set));
  signal.addEventListener("abort", () => {
    for (let bucket = 0; bucket < BUCKETS; bucket += 1) if (CSS.highlights.get(`heat-${bucket}`) === sets[bucket]) CSS.highlights.delete(`heat-${bucket}`);
    CSS.highlights.delete("token-at");
  });
}

function between(text, from, to) {
  const found = new StaticRange({ startContainer: text, startOffset: from, endContainer: text, endOffset: to });
  return found;
}

function range(name, text, from, to) {
  if (globalThis.CSS?.highlights) CSS.highlights.set(name, new Highlight(between(text, from, to)));
}

function offsetAt(x, y, text) {
  if (document.caretPositionFromPoint) {
    const place = document.caretPositionFromPoint(x, y);
    return place?.offsetNode === text ? place.offset : null;
  }
  const place = document.caretRangeFromPoint?.(x, y);
  return place?.startContainer === text ? place.startOffset : null;
}

function indexOf(starts, offset) {
  let low = 0;
  let high = starts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= offset) low = middle;
    else high = middle - 1;
  }
  return low;
}
