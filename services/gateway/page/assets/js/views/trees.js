// The trees of a run: pages by key, filters, and a list that holds only the rows in view.

import { get, left } from "../api.js";
import { h, put, say } from "../dom.js";
import { count, fixed, moment } from "../format.js";
import { runPath, treePath } from "../paths.js";
import { setQuery, title } from "../router.js";
import { empty, failed, loading } from "../states.js";
import { plain } from "../text.js";
import { VirtualList } from "../virtual.js";
import { rowName, stateWord } from "./parts.js";

const PAGE = 100;
const TYPING_MS = 300;
const ROW_HEIGHT = 48;
const ROW = /^[0-9a-f]{64}$/i;
const PURPOSES = [["train", "Training"], ["eval", "Evaluation"], ["all", "Both"]];
const STATES = ["GROWING", "SCORING", "CLOSED", "CONSUMED", "DROPPED"];
const COLUMNS = ["Tree", "State", "Policy step", "Leaves", "Tokens", "Reward", "Row", "Opened"];

export function mount(root, params, query, signal) {
  title(`Trees of ${params.run}`);
  root.className = "list-view";
  new View(root, params.run, query, signal).begin();
}

class View {
  constructor(root, run, query, signal) {
    Object.assign(this, { root, run, signal });
    this.filters = Object.fromEntries(["purpose", "state", "step", "policy_step", "row"].map((name) => [name, query.get(name) ?? ""]));
    this.list = new VirtualList({ label: "Trees", rowHeight: ROW_HEIGHT, render: (tree) => row(tree), nearEnd: () => this.#more(), signal });
    this.table = h("div", { class: "vtable", role: "table", "aria-label": "Trees", "aria-rowcount": -1 }, h("div", { role: "rowgroup" }, h("div", { class: "vrow vhead", role: "row", "aria-rowindex": 1 }, COLUMNS.map((name) => h("span", { role: "columnheader" }, name)))), this.list.scroller);
    this.below = h("div", {});
    this.note = h("p", { class: "muted small", role: "status" });
    const runs = runPath(run);
    root.append(
      h("div", { class: "head" }, h("div", {}, h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: "/runs" }, "Runs"), h("a", { href: runs }, plain(run))), h("h1", {}, "Trees")), this.#form()),
      this.note,
      this.table,
      this.below,
    );
  }

  #form() {
    const field = (label, name, element) => h("div", { class: "field" }, h("label", { for: `filter-${name}` }, label), element(name));
    const select = (options) => (name) => h("select", { id: `filter-${name}`, on: { change: (event) => this.#filter(name, event.target.value) } }, options.map(([value, text]) => h("option", { value, selected: value === this.filters[name] }, text)));
    const text = (kind, hint, least) => (name) => h("input", { id: `filter-${name}`, type: kind, value: this.filters[name], placeholder: hint, min: least, on: { input: (event) => this.#typed(name, event.target.value) } });
    return h(
      "form",
      { class: "filters", role: "search", "aria-label": "Filters", on: { submit: (event) => event.preventDefault() } },
      field("Purpose", "purpose", select(PURPOSES)),
      field("State", "state", select([["", "Any"], ...STATES.map((state) => [state, state.toLowerCase()])])),
      field("Trained in step", "step", text("number", "any", 1)),
      field("Policy step", "policy_step", text("number", "any", 0)),
      field("Row", "row", text("text", "digest")),
      h("button", { type: "button", on: { click: () => this.begin() } }, "Refresh"),
    );
  }

  #typed(name, value) {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.#filter(name, value.trim()), TYPING_MS);
  }

  #filter(name, value) {
    if (this.signal.aborted) return;
    if (name === "row" && value && !ROW.test(value)) {
      this.note.textContent = "A row is named by the 64 hex digits of its digest: a tree's page has a link to the trees of its row.";
      return;
    }
    this.filters[name] = value;
    setQuery({ [name]: name === "purpose" && value === "train" ? null : value });
    this.begin();
  }

  /** Read the first page anew. */
  begin() {
    this.controller?.abort();
    this.controller = new AbortController();
    this.next = "";
    this.busy = false;
    this.list.set([]);
    this.#more();
  }

  async #more() {
    if (this.busy || this.next === null || !this.controller || this.signal.aborted) return;
    this.busy = true;
    const { controller } = this;
    const first = this.next === "";
    if (first) put(this.below, loading("trees", 6));
    this.table.hidden = first;
    try {
      const query = new URLSearchParams({ limit: PAGE, ...Object.fromEntries(Object.entries(this.filters).filter(([, value]) => value)), ...(this.next && { after: this.next }) });
      const page = await get(`/api/runs/${encodeURIComponent(this.run)}/trees?${query}`, AbortSignal.any([this.signal, controller.signal]));
      if (controller !== this.controller) return;
      this.next = page.next;
      this.table.hidden = false;
      put(this.below);
      this.busy = false;
      this.list.add(page.trees);
      this.#tell(first);
    } catch (error) {
      if (left(error) || controller !== this.controller) return;
      put(this.below, failed(error, () => ((this.busy = false), this.#more())));
    }
  }

  #tell(first) {
    const shown = this.list.items.length;
    this.note.textContent = shown ? `${count(shown)} ${this.next === null ? (shown === 1 ? "tree" : "trees") : "trees read, more follow as you scroll"}, newest first` : "";
    if (first) say(this.note.textContent);
    if (shown) return;
    this.table.hidden = true;
    const filtered = Object.entries(this.filters).some(([name, value]) => value && !(name === "purpose" && value === "train"));
    const all = h("a", { href: `${runPath(this.run)}/trees?purpose=all` }, "Show all trees");
    put(this.below, filtered ? empty("No tree fits these filters", all, ".") : empty("No trees yet", "They appear as soon as a rollout node has begun. Evaluations have trees of their own: ", all, "."));
  }
}

function row(tree) {
  const cell = (...content) => h("span", { role: "cell" }, ...content);
  return h(
    "div",
    { class: "vrow", role: "row" },
    cell(h("a", { href: treePath(tree.tree_id) }, plain(tree.tree_id).slice(0, 16))),
    cell(stateWord(tree.state), tree.reason && h("span", { class: "muted" }, ` ${plain(tree.reason)}`)),
    cell(count(tree.policy_step)),
    cell(count(tree.leaves)),
    cell(count(tree.sampled_tokens)),
    cell(fixed(tree.mean_reward, 3)),
    cell(rowName(tree.row), tree.label && h("span", { class: "muted" }, ` ${plain(tree.label)}`)),
    cell(moment(tree.opened)),
  );
}
