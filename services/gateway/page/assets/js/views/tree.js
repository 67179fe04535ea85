// A tree, or two trees of one row side by side.

import { get, left } from "../api.js";
import { h, icon, put } from "../dom.js";
import { fixed, short } from "../format.js";
import { runPath, treePath } from "../paths.js";
import { go, setQuery, title } from "../router.js";
import { plain } from "../text.js";
import { legend } from "../tree/legend.js";
import { showKeys } from "../dialog.js";
import { Pane } from "../tree/pane.js";
import { Panel } from "../tree/panel.js";
import { MEASURES } from "../tree/scale.js";
import { KEYS } from "../tree/walk.js";
import { onTheme } from "../theme.js";

const OTHERS = 50;

export function mount(root, params, query, signal) {
  root.className = "tree-view";
  title(`Tree ${short(params.tree)}`);
  const measure = MEASURES.some(([name]) => name === query.get("colour")) ? query.get("colour") : "value";
  const view = new View(root, params.tree, query, measure, signal);
  view.start();
}

class View {
  constructor(root, tree, query, measure, signal) {
    this.signal = signal;
    this.query = query;
    this.measure = measure;
    this.crumbs = h("nav", { class: "crumbs", "aria-label": "Where this is" });
    this.heading = h("h1", {}, `Tree ${short(tree)}`);
    this.legend = h("div", { class: "legend-place" });
    this.panes = h("div", { class: "panes" });
    this.panel = new Panel("", () => this.chosen(this.main, null));
    this.compare = h("select", { "aria-label": "Compare with another tree of this row", disabled: true, on: { change: () => this.#comparedWith(this.compare.value) } }, h("option", { value: "" }, "Compare with…"));
    this.main = this.#pane(tree);
    this.active = this.main;
    this.list = [this.main];
    if (query.get("with")) this.list.push(this.#pane(query.get("with")));
    put(this.panes, this.list.map((pane) => pane.element));
    root.append(h("div", { class: "tree-head" }, h("div", {}, this.crumbs, this.heading), this.#tools()), this.legend, h("div", { class: "tree-body" }, this.panes, this.panel.element));
    this.panes.classList.toggle("two", this.list.length === 2);
    onTheme(() => this.#legend(), signal);
    signal.addEventListener("abort", () => this.panel.end());
  }

  #pane(id) {
    return new Pane(id, { measure: this.measure, models: () => this.list.map((pane) => pane.model), chosen: (pane, node, focus) => this.chosen(pane, node, focus), changed: (pane, document) => this.#changed(pane, document), signal: this.signal });
  }

  async start() {
    for (const pane of this.list) pane.start().then(() => this.#ready(pane));
  }

  #ready(pane) {
    if (!pane.stage || pane !== this.main) return;
    const segment = this.query.get("segment");
    if (segment) pane.reveal(segment);
    this.#others(pane.model.document);
  }

  #changed(pane, document) {
    for (const other of this.list) if (other !== pane) other.recolour();
    this.#legend();
    if (pane !== this.main) return;
    this.panel.run = document.run_id;
    const runs = runPath(document.run_id);
    const place = document.run_id + document.tree_id;
    if (this.place !== place) {
      this.place = place;
      const of = h("a", { href: `${runs}/trees?purpose=all&row=${encodeURIComponent(document.row ?? "")}` }, "Trees of this row");
      put(this.crumbs, h("a", { href: "/runs" }, "Runs"), h("a", { href: runs }, plain(document.run_id)), h("a", { href: `${runs}/trees` }, "Trees"), document.row !== null && of);
    }
    if (!this.node) this.panel.showTree(document);
  }

  #legend() {
    const pane = this.active.scale ? this.active : this.main;
    if (pane.scale) put(this.legend, legend(pane.scale));
  }

  chosen(pane, node, focus = false) {
    this.active = pane;
    this.node = node;
    this.#legend();
    if (node) {
      this.panel.showNode(pane.model.document, node);
      if (focus) this.panel.element.focus();
      this.panel.element.addEventListener("keydown", (event) => event.key === "Escape" && this.chosen(pane, null), { once: true, signal: this.signal });
    } else {
      this.panel.showTree(this.main.model.document);
      pane.stage?.host.focus({ preventScroll: true });
    }
    setQuery({ segment: node && pane === this.main ? node.data.segment : null });
  }

  async #others(document) {
    if (document.row === null || document.row === undefined) return;
    const row = encodeURIComponent(document.row);
    try {
      const { trees } = await get(`/api/runs/${encodeURIComponent(document.run_id)}/trees?row=${row}&purpose=all&limit=${OTHERS}`, this.signal);
      const others = trees.filter((tree) => tree.tree_id !== document.tree_id).sort((a, b) => a.policy_step - b.policy_step);
      const options = others.map((tree) => h("option", { value: tree.tree_id }, `step ${tree.policy_step} · reward ${fixed(tree.mean_reward, 2)} · ${short(tree.tree_id)}`));
      const second = this.query.get("with");
      put(this.compare, h("option", { value: "" }, others.length ? (second ? "One tree only" : "Compare with…") : "No other tree of this row"), options);
      this.compare.value = second ?? "";
      this.compare.disabled = !others.length && !second;
    } catch (error) {
      if (!left(error)) put(this.compare, h("option", { value: "" }, "Other trees cannot be listed"));
    }
  }

  #comparedWith(id) {
    const query = new URLSearchParams({ ...(id && { with: id }), ...(this.measure !== "value" && { colour: this.measure }) }).toString();
    go(`${treePath(this.main.id)}${query ? `?${query}` : ""}`, true);
  }

  #tools() {
    const each = (act) => () => this.list.forEach((pane) => pane.stage && act(pane));
    const button = (name, label, act) => h("button", { type: "button", class: "quiet", "aria-label": label, title: label, on: { click: act } }, icon(name));
    const colours = h(
      "select",
      { "aria-label": "Colour by", on: { change: (event) => this.#measured(event.target.value) } },
      MEASURES.map(([name, words]) => h("option", { value: name, selected: name === this.measure }, `Colour: ${words.toLowerCase()}`)),
    );
    return h(
      "div",
      { class: "tools", role: "toolbar", "aria-label": "Tree" },
      colours,
      this.compare,
      h(
        "span",
        { class: "group" },
        button("minus", "Zoom out", each((pane) => pane.stage.zoom(0.8))),
        button("fit", "All in view", each((pane) => pane.stage.fit())),
        button("plus", "Zoom in", each((pane) => pane.stage.zoom(1.25))),
      ),
      h("span", { class: "group" }, button("expand", "Open all subtrees", each((pane) => pane.expandAll())), button("collapse", "Fold all subtrees", each((pane) => pane.collapseAll()))),
      button("keys", "Keys", () => showKeys(KEYS)),
    );
  }

  #measured(measure) {
    this.measure = measure;
    setQuery({ colour: measure === "value" ? null : measure });
    for (const pane of this.list) pane.recolour(measure);
    this.#legend();
  }
}
