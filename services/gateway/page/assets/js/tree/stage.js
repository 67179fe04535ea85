// The picture of a tree. Branches are drawn on a canvas, nodes are elements, and of those only the
// ones in view exist; far out they are bars on the canvas, so their number has a bound.

import { h } from "../dom.js";
import { Camera } from "./camera.js";
import { makeCard, paint } from "./card.js";
import { layout } from "./layout.js";

export const CARD = { width: 216, height: 44, column: 264, row: 56 };
export const READABLE = 0.75;
const AS_CARDS = 0.5;
const MOST_CARDS = 170;
const GLIDE_MS = 240;
const FRESH_MS = 6000;
const still = matchMedia("(prefers-reduced-motion: reduce)");
let stages = 0;

export class Stage {
  constructor(model, scale, { choose, label, signal }) {
    this.model = model;
    this.scale = scale;
    this.choose = choose;
    this.signal = signal;
    this.id = (stages += 1);
    this.cards = new Map();
    this.places = new Map();
    this.fresh = new Map();
    this.selected = null;
    this.items = [];
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.layer = h("div", { class: "layer", role: "none" });
    this.host = h("div", { class: "stage", role: "tree", tabindex: "0", "aria-label": label }, this.canvas, this.layer);
    this.camera = new Camera(this.host, () => this.invalidate(), signal);
    this.host.addEventListener("click", (event) => this.#click(event), { signal });
    const observer = new ResizeObserver(() => this.#resize());
    observer.observe(this.host);
    signal.addEventListener("abort", () => {
      observer.disconnect();
      cancelAnimationFrame(this.frame);
      clearTimeout(this.freshTimer);
    });
  }

  #resize() {
    const ratio = devicePixelRatio || 1;
    this.width = this.host.clientWidth;
    this.height = this.host.clientHeight;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    if (!this.fitted && this.items.length && this.width) {
      this.fit(READABLE);
      if (this.selected) this.select(this.selected);
    }
    this.draw();
  }

  #click(event) {
    if (this.camera.dragged) return;
    const key = event.target.closest(".card")?.dataset.key;
    const item = key === undefined ? this.#at(event) : this.items.find((one) => one.key === key);
    if (!item) return;
    this.choose(item, event.target.closest(".meta, .end") !== null && !item.more && item.node.children.length > 0);
  }

  // A bar on the canvas, far out, can be clicked as well.
  #at(event) {
    const box = this.host.getBoundingClientRect();
    const x = (event.clientX - box.left - this.camera.x) / this.camera.k;
    const y = (event.clientY - box.top - this.camera.y) / this.camera.k;
    return this.items.find((item) => x >= item.x && x <= item.x + CARD.width && y >= item.y && y <= item.y + CARD.height);
  }

  /** Lay out what is open now. Nodes glide to new places, and what one looks at stays where it is. */
  arrange(freshKeys = []) {
    performance.clearMeasures("tree-layout");
    const from = performance.now();
    const { items, rows, columns } = layout(this.model);
    performance.measure("tree-layout", { start: from, end: performance.now() });
    const anchor = this.#anchor();
    const before = this.places;
    this.places = new Map();
    for (const item of items) {
      item.x = item.column * CARD.column;
      item.y = item.row * CARD.row;
      this.places.set(item.key, item);
    }
    if (anchor && this.places.has(anchor.key)) this.camera.y += (anchor.y - this.places.get(anchor.key).y) * this.camera.k;
    const moved = anchor && this.places.has(anchor.key) ? this.places.get(anchor.key).y - anchor.y : 0;
    for (const item of items) {
      const old = before.get(item.key) ?? (item.parent && before.get(item.parent.key));
      item.fromX = old ? old.x : item.x;
      item.fromY = old ? old.y + moved : item.y;
    }
    this.items = items;
    this.world = { width: (columns - 1) * CARD.column + CARD.width + 64, height: (rows - 1) * CARD.row + CARD.height };
    this.glideFrom = before.size && !still.matches ? performance.now() : 0;
    this.#mark(freshKeys);
    if (this.selected && !this.places.has(this.selected)) this.selected = null;
    for (const [key, card] of this.cards) if (!this.places.has(key)) this.#remove(key, card);
    this.stale = true;
    this.invalidate();
  }

  // What a person looks at: the selected node if it is in view, else the one nearest to the middle.
  #anchor() {
    const chosen = this.selected && this.places.get(this.selected);
    if (chosen) return { key: chosen.key, y: chosen.y };
    let best = null;
    let least = Infinity;
    for (const item of this.items) {
      const off = Math.abs(this.camera.y + (item.y + CARD.height / 2) * this.camera.k - this.height / 2);
      if (off < least) [least, best] = [off, item];
    }
    return best && { key: best.key, y: best.y };
  }

  #mark(keys) {
    const now = performance.now();
    for (const key of keys) this.fresh.set(key, now);
    clearTimeout(this.freshTimer);
    for (const [key, since] of this.fresh) if (now - since > FRESH_MS) this.fresh.delete(key);
    if (this.fresh.size) {
      this.freshTimer = setTimeout(() => {
        this.stale = true;
        this.#mark([]);
        this.invalidate();
      }, FRESH_MS);
    }
  }

  setScale(scale) {
    this.scale = scale;
    this.stale = true;
    this.invalidate();
  }

  select(key) {
    this.selected = key;
    this.stale = true;
    const item = this.places.get(key);
    if (item) this.camera.show(item.x, item.y, CARD.width + 48, CARD.height, this.width, this.height);
    this.invalidate();
  }

  fit(least) {
    if (!this.width || !this.items.length) return;
    this.fitted = true;
    const { width, height } = this.world;
    this.camera.fit(width, height, this.width, this.height, least);
    if (height * this.camera.k > this.height) {
      const middle = this.height / 2 - (this.items[0].y + CARD.height / 2) * this.camera.k;
      this.camera.y = Math.min(40, Math.max(this.height - height * this.camera.k - 24, middle));
    }
    this.invalidate();
  }

  zoom(factor) {
    this.camera.zoom(factor, this.width / 2, this.height / 2);
  }

  invalidate() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    if (!this.width || this.signal.aborted) return;
    const share = this.glideFrom ? Math.min(1, (performance.now() - this.glideFrom) / GLIDE_MS) : 1;
    const eased = 1 - (1 - share) ** 3;
    for (const item of this.items) {
      item.nowX = item.fromX + (item.x - item.fromX) * eased;
      item.nowY = item.fromY + (item.y - item.fromY) * eased;
    }
    const visible = this.#visible();
    const asCards = this.camera.k >= AS_CARDS && visible.length <= MOST_CARDS;
    this.#drawBranches(asCards ? [] : visible);
    this.#placeCards(asCards ? visible : this.#selectedOf(visible));
    if (share < 1) this.invalidate();
    else this.glideFrom = 0;
  }

  // The tree's active descendant exists at every zoom.
  #selectedOf(visible) {
    return visible.filter((item) => item.key === this.selected);
  }

  #visible() {
    const { x, y, k } = this.camera;
    const [left, right] = [-x / k - CARD.width - 64, (this.width - x) / k];
    const [top, bottom] = [-y / k - CARD.height, (this.height - y) / k];
    return this.items.filter((item) => item.nowX > left && item.nowX < right && item.nowY > top && item.nowY < bottom);
  }

  #drawBranches(bars) {
    const context = this.canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    const { x, y, k } = this.camera;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.setTransform(ratio * k, 0, 0, ratio * k, ratio * x, ratio * y);
    const [left, right, top, bottom] = [-x / k, (this.width - x) / k, -y / k, (this.height - y) / k];
    const most = Math.sqrt(Math.max(1, this.model.root?.data.paths ?? this.model.leaves));
    context.lineCap = "butt";
    for (const item of this.items) {
      if (!item.parent) continue;
      const [fromX, fromY] = [item.parent.nowX + CARD.width, item.parent.nowY + CARD.height / 2];
      const [toX, toY] = [item.nowX, item.nowY + CARD.height / 2];
      if (toX < left || fromX > right || Math.max(fromY, toY) < top || Math.min(fromY, toY) > bottom) continue;
      const paths = item.more ? item.more : (item.node.data.paths ?? item.node.leaves);
      const colour = item.more ? this.scale.none : this.scale.colour(item.node);
      const width = colour === this.scale.none ? 1.5 : Math.min(14, (14 * Math.sqrt(Math.max(1, paths))) / most);
      context.lineWidth = Math.max(1.5, width, 1 / k);
      context.strokeStyle = colour;
      context.globalAlpha = 0.75;
      context.setLineDash(item.more ? [4, 4] : []);
      const middle = (fromX + toX) / 2;
      context.beginPath();
      context.moveTo(fromX, fromY);
      context.bezierCurveTo(middle, fromY, middle, toY, toX, toY);
      context.stroke();
    }
    context.globalAlpha = 1;
    context.setLineDash([]);
    for (const item of bars) {
      context.fillStyle = item.more ? this.scale.none : this.scale.colour(item.node);
      context.fillRect(item.nowX, item.nowY + 8, CARD.width, CARD.height - 16);
    }
  }

  #placeCards(visible) {
    const { x, y, k } = this.camera;
    this.layer.style.transform = `translate(${x}px, ${y}px) scale(${k})`;
    const wanted = new Set();
    for (const item of visible) {
      wanted.add(item.key);
      let card = this.cards.get(item.key);
      const isNew = !card;
      if (card && card.data !== item.node.data) {
        this.#remove(item.key, card);
        card = null;
      }
      if (!card) {
        card = { element: makeCard(item, `t${this.id}-${item.key}`), data: item.node.data };
        this.cards.set(item.key, card);
        this.layer.append(card.element);
      }
      if (this.stale || isNew || card.painted !== item) {
        card.painted = item;
        paint(card.element, item, this.scale, { selected: item.key === this.selected, fresh: this.fresh.has(item.key), open: this.model.isOpen(item.node) });
      }
      card.element.style.transform = `translate(${item.nowX}px, ${item.nowY}px)`;
    }
    for (const [key, card] of this.cards) if (!wanted.has(key)) this.#remove(key, card);
    this.stale = false;
    const active = this.selected && this.cards.get(this.selected)?.element.id;
    if (active) this.host.setAttribute("aria-activedescendant", active);
    else this.host.removeAttribute("aria-activedescendant");
  }

  #remove(key, card) {
    card.element.remove();
    this.cards.delete(key);
  }
}
