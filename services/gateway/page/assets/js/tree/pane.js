// One tree in a view: its picture, its keys, and its stream while it grows.

import { get } from "../api.js";
import { h, say } from "../dom.js";
import { fixed, plural } from "../format.js";
import { fill } from "../states.js";
import { follow } from "../stream.js";
import { plain } from "../text.js";
import { dark, onTheme } from "../theme.js";
import { describe } from "./card.js";
import { TreeModel } from "./model.js";
import { scaleOf } from "./scale.js";
import { CARD, READABLE, Stage } from "./stage.js";
import { KEYS, neighbour } from "./walk.js";
import { showKeys } from "../dialog.js";

const READABLE_ROWS = 1.2;

export class Pane {
  /** `models()` are all whose colours are to be compared. `chosen(pane, node)` is called for a chosen node, and with null when the choice is taken back. */
  constructor(id, { measure, models, chosen, changed, signal }) {
    this.id = id;
    this.measure = measure;
    this.models = models;
    this.chosen = chosen;
    this.changed = changed;
    this.signal = signal;
    this.model = new TreeModel();
    this.caption = h("p", { class: "caption" });
    this.body = h("div", { class: "pane-body" });
    this.element = h("section", { class: "pane", "aria-label": "Tree" }, this.caption, this.body);
    onTheme(() => this.recolour(), signal);
  }

  /** Load the tree and show it; follow it while it grows. */
  async start() {
    await fill(this.body, "the tree", () => get(`/api/trees/${encodeURIComponent(this.id)}`, this.signal), (document) => this.#first(document), this.signal);
  }

  #first(document) {
    this.model.update(document);
    const rows = Math.max(10, Math.floor((innerHeight * READABLE_ROWS) / CARD.row));
    this.model.openUpTo(rows);
    this.rows = rows;
    this.scale = scaleOf(this.measure, this.models(), dark());
    this.stage = new Stage(this.model, this.scale, {
      label: `Tree of ${plural(this.model.leaves, "leaf", "leaves")}; arrow keys walk it, ? shows all keys`,
      choose: (item, toggle) => this.#clicked(item, toggle),
      signal: this.signal,
    });
    this.stage.host.addEventListener("keydown", (event) => this.#key(event), { signal: this.signal });
    this.stage.host.addEventListener("focus", () => this.#focused(), { signal: this.signal });
    this.nothing = h("p", { class: "nothing" }, "Nothing is sampled yet. Segments appear here as they come.");
    this.stage.arrange();
    this.#told(document);
    if (document.state === "GROWING" || document.state === "SCORING") {
      follow(() => `/api/trees/${encodeURIComponent(this.id)}/events`, { tree: (next) => this.#grown(next) }, this.signal);
    }
    return [this.stage.host, this.nothing];
  }

  #grown(document) {
    if (!document || document.revision === this.model.document.revision) return;
    const fresh = this.model.update(document);
    this.model.openUpTo(this.rows);
    this.scale = scaleOf(this.measure, this.models(), dark());
    this.stage.scale = this.scale;
    this.stage.arrange(fresh);
    if (!this.stage.fitted) this.stage.fit(READABLE);
    this.#told(document);
    if (fresh.length) say(`${plural(fresh.length, "new segment")}, ${plural(this.model.leaves, "leaf", "leaves")} now.`);
  }

  #told(document) {
    const parts = [document.policy && plain(document.policy), stepsOf(this.model), plural(this.model.leaves, "leaf", "leaves"), `mean reward ${fixed(document.reward_mean, 3)}`];
    this.caption.replaceChildren(h("span", { class: `state-word ${document.state.toLowerCase()}` }, plain(document.state.toLowerCase())), ` ${parts.filter(Boolean).join(" · ")}`);
    this.nothing.hidden = this.model.root !== null;
    this.changed(this, document);
  }

  recolour(measure = this.measure) {
    this.measure = measure;
    if (!this.stage) return;
    this.scale = scaleOf(measure, this.models(), dark());
    this.stage.setScale(this.scale);
  }

  get selected() {
    return this.stage?.selected ? this.stage.places.get(this.stage.selected) : null;
  }

  #focused() {
    if (!this.selected && this.stage.items.length) this.#to(this.stage.items[0]);
  }

  #to(item) {
    this.stage.select(item.key);
    say(describe(item, this.scale));
  }

  #clicked(item, toggle) {
    this.#to(item);
    if (item.more) this.#more(item);
    else if (toggle) this.toggle(item);
    else this.chosen(this, item.node);
  }

  #more(item) {
    this.model.showMore(item.node);
    this.stage.selected = item.node.key;
    this.stage.arrange();
    say(`${plural(this.model.childrenOf(item.node).length, "branch", "branches")} shown.`);
  }

  toggle(item) {
    this.model.toggle(item.node);
    this.stage.arrange();
    say(this.model.isOpen(item.node) ? "Opened." : `Folded, ${plural(item.node.leaves, "leaf", "leaves")} inside.`);
  }

  expandAll() {
    this.model.expandAll();
    this.stage.arrange();
  }

  collapseAll() {
    this.model.collapseAll();
    this.stage.arrange();
    this.stage.fit(READABLE);
  }

  /** Show the node of a segment, and choose it. */
  reveal(segment) {
    const node = this.model.order.find((one) => one.data.segment === segment);
    if (!node) return;
    this.model.reveal(node);
    this.stage.arrange();
    this.stage.select(node.key);
    this.chosen(this, node);
  }

  #key(event) {
    if (event.target !== this.stage.host || event.ctrlKey || event.metaKey || event.altKey) return;
    const { stage, selected } = this;
    const acts = {
      "+": () => stage.zoom(1.25),
      "=": () => stage.zoom(1.25),
      "-": () => stage.zoom(0.8),
      "−": () => stage.zoom(0.8),
      0: () => stage.fit(),
      e: () => this.expandAll(),
      c: () => this.collapseAll(),
      "?": () => showKeys(KEYS),
      Escape: () => this.chosen(this, null),
      Enter: () => selected && (selected.more ? this.#more(selected) : this.chosen(this, selected.node, true)),
      " ": () => selected && !selected.more && selected.node.children.length && this.toggle(selected),
    };
    if (acts[event.key]) {
      event.preventDefault();
      acts[event.key]();
    } else if (/^(Arrow|Home$|End$)/.test(event.key)) {
      event.preventDefault();
      if (event.key === "ArrowRight" && selected && !selected.more && selected.node.children.length && !this.model.isOpen(selected.node)) {
        this.toggle(selected);
      }
      const next = neighbour(stage.items, stage.places, this.selected, event.key);
      if (next) this.#to(next);
    }
  }
}

// The policy versions that sampled a tree: more than one where it grew across a step.
function stepsOf(model) {
  const steps = model.order.map((node) => node.data.policy_step).filter(Number.isFinite);
  if (!steps.length) return "";
  const [low, high] = [steps.reduce((a, b) => Math.min(a, b)), steps.reduce((a, b) => Math.max(a, b))];
  return low === high ? `policy of step ${low}` : `policies of steps ${low} to ${high}`;
}
