// A list of any length of which only the rows in view exist.

import { h } from "./dom.js";

const AHEAD = 12;

export class VirtualList {
  /** `render(item, index)` returns a row; `nearEnd` is called when the last rows come into view. */
  constructor({ label, rowHeight, render, nearEnd, signal }) {
    Object.assign(this, { rowHeight, render, nearEnd });
    this.items = [];
    this.rows = new Map();
    this.space = h("div", { class: "space", role: "presentation" });
    this.scroller = h("div", { class: "scroller", tabindex: "0", role: "rowgroup", "aria-label": label }, this.space);
    this.scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    this.scroller.addEventListener("keydown", (event) => this.#key(event));
    const observer = new ResizeObserver(() => this.draw());
    observer.observe(this.scroller);
    signal.addEventListener("abort", () => observer.disconnect());
  }

  set(items) {
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.items = items;
    this.scroller.scrollTop = 0;
    this.draw();
  }

  add(items) {
    this.items.push(...items);
    this.draw();
  }

  draw() {
    const { rowHeight } = this;
    this.space.style.height = `${this.items.length * rowHeight}px`;
    const top = this.scroller.scrollTop;
    const first = Math.max(0, Math.floor(top / rowHeight) - AHEAD);
    const last = Math.min(this.items.length, Math.ceil((top + this.scroller.clientHeight) / rowHeight) + AHEAD);
    for (const [index, row] of this.rows) {
      if (index >= first && index < last) continue;
      if (row.contains(document.activeElement)) this.scroller.focus({ preventScroll: true });
      row.remove();
      this.rows.delete(index);
    }
    for (let index = first; index < last; index += 1) {
      if (this.rows.has(index)) continue;
      const row = this.render(this.items[index], index);
      row.style.transform = `translateY(${index * rowHeight}px)`;
      row.setAttribute("aria-rowindex", index + 2);
      row.dataset.index = index;
      this.rows.set(index, row);
      this.#place(index, row);
    }
    const bar = this.scroller.offsetWidth - this.scroller.clientWidth;
    this.scroller.parentElement?.style.setProperty("--bar", `${bar}px`);
    if (last >= this.items.length - AHEAD) this.nearEnd();
  }

  // In order of the list, so that Tab goes from row to row.
  #place(index, row) {
    let after = null;
    for (const [at, other] of this.rows) if (at > index && other.parentNode && (!after || at < Number(after.dataset.index))) after = other;
    this.space.insertBefore(row, after);
  }

  #key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (!step) return;
    event.preventDefault();
    const here = event.target.closest("[data-index]");
    const from = here ? Number(here.dataset.index) : Math.ceil(this.scroller.scrollTop / this.rowHeight) - (step > 0 ? step : 0);
    const index = Math.min(this.items.length - 1, Math.max(0, from + step));
    const top = index * this.rowHeight;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight) this.scroller.scrollTop = top + this.rowHeight - clientHeight;
    this.draw();
    this.rows.get(index)?.querySelector("a, button")?.focus({ preventScroll: true });
  }
}
