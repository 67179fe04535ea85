// One node of a tree as an element: its kind by shape, its beginning, why it ends, its reward.

import { h, icon } from "../dom.js";
import { count, DASH, fixed, plural } from "../format.js";
import { beginning, plain } from "../text.js";
import { isCall, textOf, valueOf } from "./model.js";
import { inkOn } from "./scale.js";

const FINISH = { STOP: "ends", LENGTH: "length limit", BOUNDARY: "", TOOL_CALL: "", PRUNED: "pruned", ABORTED: "aborted" };

/** Return the kind of a node as a word for its shape. */
export function shapeOf(node) {
  if (node.data.kind === "CONTEXT") return "prompt";
  if (node.data.kind === "TOOL") return "answer";
  if (node.data.kind === "FORCED") return "forced";
  return isCall(node) ? "call" : "policy";
}

/** Return why a node begins or ends as it does, in a few words, with a mark: how it ends comes first. */
export function reasonOf(data) {
  const reasons = plain(data.why).split("; ");
  const ending = reasons.find((words) => /pruned|ended|cut|stopped|reached/i.test(words));
  const words = (ending ?? reasons[0]).replace(/^plan \d+ of claim \d+ /, "").replace(/^the tree policy /, "").replace(/^forked it off after token (\d+) of its parent/, "after token $1");
  return { mark: ending ? "cut" : "fork", words: words.charAt(0).toUpperCase() + words.slice(1) };
}

const MARKS = { call: ["tool", "Tool call"], answer: ["answer", "Tool's answer"], forced: ["right", "Given, not sampled"], prompt: ["list", "Prompt"] };

/** Return the sentence of a node for readers of the screen. */
export function describe(item, scale) {
  const { node } = item;
  if (item.more) return `${plural(item.more, "more branch", "more branches")} of ${beginning(textOf(node), 40)}. Press Enter to show them.`;
  const { data } = node;
  const mark = MARKS[shapeOf(node)]?.[1];
  const parts = [`${mark ? `${mark}: ` : ""}${beginning(textOf(node), 80) || "no text"}`];
  const value = scale.read(node);
  if (value !== null) parts.push(`${scale.measure.replace("_", " ")} ${scale.show(value)}`);
  if (data.leaf) parts.push(`leaf, ${data.leaf.reward === null ? "without a score" : `reward ${fixed(data.leaf.reward, 2)}`}`);
  if (data.why) parts.push(data.why);
  if (node.children.length) parts.push(plural(node.children.length, "branch", "branches"), plural(node.leaves, "leaf", "leaves") + " below");
  return `${parts.join(", ")}.`;
}

/** Return the element of an item; `paint` gives it its colours. */
export function makeCard(item, id) {
  const { node } = item;
  const element = h("div", { class: "card", role: "treeitem", id, "aria-level": item.column + 1, data: { key: item.key } });
  if (item.more) {
    element.classList.add("more");
    element.append(h("span", { class: "text" }, `${count(item.more)} more`), h("span", { class: "meta" }, icon("plus"), "Show more branches"));
    return element;
  }
  const shape = shapeOf(node);
  element.classList.add(shape);
  element.append(
    h("span", { class: "bar" }),
    h("span", { class: "text", dir: "auto" }, beginning(textOf(node), 64) || "∅"),
    h("span", { class: "meta" }),
  );
  return element;
}

/** Set what may change while a tree grows or its measure changes. */
export function paint(element, item, scale, state) {
  element.classList.toggle("chosen", state.selected);
  element.classList.toggle("fresh", state.fresh);
  element.setAttribute("aria-selected", String(state.selected));
  if (item.more) return;
  const { node } = item;
  const open = state.open;
  if (node.children.length) element.setAttribute("aria-expanded", String(open));
  else element.removeAttribute("aria-expanded");
  element.querySelector(".bar").style.setProperty("background", scale.colour(node));
  element.querySelector(".meta").replaceChildren(...meta(node, open, scale));
  element.classList.toggle("folded", node.children.length > 0 && !open);
  let end = element.querySelector(".end");
  const text = endText(node, open, scale);
  if (text === null) end?.remove();
  else {
    if (!end) element.append((end = h("span", {})));
    end.className = node.data.leaf ? "end leaf" : "end";
    end.textContent = text.words;
    const colour = text.colour ?? scale.none;
    end.style.setProperty("background", colour);
    end.style.setProperty("color", inkOn(colour));
  }
}

function meta(node, open, scale) {
  const { data } = node;
  const shape = shapeOf(node);
  const found = [];
  if (MARKS[shape]) found.push(icon(MARKS[shape][0]));
  const reason = data.why && reasonOf(data);
  if (reason) {
    const value = reason.mark === "fork" && node.children.length ? scale.read(node) : null;
    found.push(icon(reason.mark), value === null ? reason.words : `${scale.show(value)} · ${reason.words}`);
  } else if (node.children.length && !open) found.push(plural(node.leaves, "leaf", "leaves"));
  else {
    const ending = node.children.length ? "" : (FINISH[data.finish] ?? "");
    const value = node.children.length ? scale.read(node) : null;
    found.push([plural(data.tokens, "token"), ending, value === null ? "" : scale.show(value)].filter(Boolean).join(" · "));
  }
  return found;
}

// The pill at a card's end: a leaf's reward, or what a folded subtree is worth.
function endText(node, open, scale) {
  const { leaf } = node.data;
  if (leaf) {
    if (leaf.reward === null) return { words: DASH, colour: null };
    return { words: fixed(leaf.reward, 2), colour: scale.measure === "value" ? scale.at(leaf.reward) : scale.colour(node) };
  }
  if (!node.children.length || open) return null;
  const value = scale.read(node) ?? valueOf(node);
  return { words: value === null ? DASH : scale.show(value).replace("step ", ""), colour: scale.colour(node) };
}
