// Parts that several views show.

import { h } from "../dom.js";
import { count, fixed, moment, short } from "../format.js";
import { treePath } from "../paths.js";
import { plain } from "../text.js";

/** Return the state of something as a word with a mark. */
export function stateWord(state) {
  const text = plain(state);
  return h("span", { class: `state-word ${text.toLowerCase().replace(/[^a-z_]/g, "")}` }, text.toLowerCase().replaceAll("_", " "));
}

/** Return a table. `head` holds names of columns; a name that begins with # is of numbers. */
export function table(caption, head, rows) {
  const cells = head.map((name) => h("th", { scope: "col", ...(name.startsWith("#") && { class: "num" }) }, name.replace("#", "")));
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption }, h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, cells)), h("tbody", {}, rows)));
}

/** Return the beginning of a row's digest. */
export function rowName(row) {
  return h("span", { title: plain(row) }, short(plain(row)));
}

/** Return a row of a short table of trees. */
export function treeRow(tree) {
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: treePath(tree.tree_id) }, short(tree.tree_id))),
    h("td", {}, stateWord(tree.state), tree.reason && h("span", { class: "muted" }, ` ${plain(tree.reason)}`)),
    h("td", { class: "num" }, count(tree.policy_step)),
    h("td", { class: "num" }, count(tree.leaves)),
    h("td", { class: "num" }, fixed(tree.mean_reward, 3)),
    h("td", {}, rowName(tree.row)),
    h("td", {}, moment(tree.opened)),
  );
}
