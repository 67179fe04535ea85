// All runs: their state, steps, reward and time; two or more of them go to one chart.

import { get, left } from "../api.js";
import { h, put } from "../dom.js";
import { duration, fixed, moment } from "../format.js";
import { sparkline } from "../lines.js";
import { runPath } from "../paths.js";
import { go, title } from "../router.js";
import { Metrics } from "../series.js";
import { empty, failed, fill } from "../states.js";
import { poll } from "../stream.js";
import { beginning, plain } from "../text.js";
import { onTheme } from "../theme.js";
import { Health } from "./health.js";
import { stateWord, table } from "./parts.js";

const AT_ONCE = 2;
const LOOK_MS = 3000;

export function mount(root, params, query, signal) {
  title("Runs");
  const chosen = new Set();
  const compare = h("button", { type: "button", class: "primary", disabled: true, on: { click: () => go(`/compare?runs=${[...chosen].map(encodeURIComponent).join(",")}`) } }, "Compare");
  const host = h("div", {});
  root.append(h("div", { class: "head" }, h("h1", {}, "Runs"), h("div", { class: "actions" }, h("span", { class: "muted hint" }, "Choose two or more to compare"), compare)), host);
  const list = new List(host, signal, chosen, () => {
    compare.disabled = chosen.size < 2;
    compare.textContent = chosen.size < 2 ? "Compare" : `Compare ${chosen.size} runs`;
  });
  list.start();
}

class List {
  constructor(host, signal, chosen, changed) {
    Object.assign(this, { host, signal, chosen, changed });
    this.health = new Health(signal, (id) => this.rows.get(id)?.draw());
    this.rewards = new Rewards(signal, this.health);
    this.rows = new Map();
    this.runs = [];
    this.more = h("button", { type: "button", on: { click: () => this.#more() } }, "Older runs");
    onTheme(() => this.rewards.redraw(), signal);
  }

  async start() {
    await fill(this.host, "runs", () => get("/api/runs?limit=50", this.signal), (page) => this.#first(page), this.signal);
    await poll(() => this.#again(), LOOK_MS, this.signal);
  }

  #first(page) {
    this.next = page.next;
    this.runs = page.runs;
    if (!page.runs.length) return empty("No runs yet", "Start one in a terminal: ", h("code", {}, "banyan train quickstart"), ". It appears here by itself.");
    this.body = h("tbody", {});
    const shown = table("Runs", ["", "Run", "State", "#Steps", "Reward", "#Time", "Started"], []);
    shown.querySelector("tbody").replaceWith(this.body);
    shown.classList.add("runs");
    this.#render();
    this.more.hidden = !this.next;
    return [shown, h("p", { class: "actions more-runs" }, this.more)];
  }

  async #again() {
    try {
      const page = await get("/api/runs?limit=50", this.signal);
      if (!this.body || !page.runs.length) {
        if (page.runs.length || this.body) put(this.host, this.#first(page));
        return;
      }
      const known = new Set(page.runs.map((run) => run.run_id));
      const last = page.runs.at(-1)?.run_id;
      const at = this.runs.findIndex((run) => run.run_id === last);
      this.runs = [...page.runs, ...this.runs.slice(at < 0 ? this.runs.length : at + 1).filter((run) => !known.has(run.run_id))];
      this.#render();
    } catch (error) {
      if (!left(error) && !this.body) this.#failed(error);
    }
  }

  #failed(error) {
    if (this.failed === error.message && this.host.querySelector(".failed")) return;
    this.failed = error.message;
    put(this.host, failed(error, () => this.#again()));
  }

  async #more() {
    this.more.disabled = true;
    try {
      const page = await get(`/api/runs?limit=50&after=${encodeURIComponent(this.next)}`, this.signal);
      this.runs.push(...page.runs);
      this.next = page.next;
      this.#render();
    } catch (error) {
      if (!left(error)) this.more.textContent = `${error.message} Try again`;
    }
    this.more.disabled = false;
    this.more.hidden = !this.next;
  }

  // Rows are kept, so that the focus and what is checked stay where they are.
  #render() {
    const wanted = new Set(this.runs.map((run) => run.run_id));
    for (const [id, row] of this.rows) {
      if (wanted.has(id)) continue;
      row.element.remove();
      this.rows.delete(id);
      this.chosen.delete(id);
    }
    this.runs.forEach((run, index) => {
      let row = this.rows.get(run.run_id);
      if (!row) this.rows.set(run.run_id, (row = this.#row(run)));
      row.update(run);
      if (this.body.children[index] !== row.element) this.body.insertBefore(row.element, this.body.children[index] ?? null);
    });
    this.changed();
  }

  #row(run) {
    const id = run.run_id;
    const box = h("input", { type: "checkbox", "aria-label": `Choose ${plain(id)}`, checked: this.chosen.has(id), on: { change: () => (box.checked ? this.chosen.add(id) : this.chosen.delete(id), this.changed()) } });
    const [state, steps, time] = [h("td", {}), h("td", { class: "num" }), h("td", { class: "num" })];
    const what = [run.model, run.task, run.policy].filter(Boolean).map((text) => beginning(text, 40)).join(" · ");
    const element = h(
      "tr",
      {},
      h("td", { class: "check" }, box),
      h("th", { scope: "row", class: "wide" }, h("a", { href: runPath(id) }, plain(run.name || id)), h("div", { class: "muted small" }, plain(id)), h("div", { class: "muted small desk" }, what)),
      state,
      steps,
      h("td", { class: "reward" }, this.rewards.cell(run)),
      time,
      h("td", { class: "started" }, moment(run.created)),
    );
    let [shown, latest] = ["", run];
    const draw = () => {
      const badge = this.health.badge(latest);
      const kept = state.querySelector(".badge"); // its focus stays where it is
      put(state, stateWord(latest.state), h("div", { class: "muted small phone" }, stepsOf(latest)), badge && h("div", { class: "small" }, kept?.isEqualNode(badge) ? kept : badge), latest.cause && h("div", { class: "muted small cause" }, beginning(latest.cause, 80)));
      put(steps, stepsOf(latest), this.health.pace(latest));
      put(time, duration(latest.seconds));
    };
    const update = (now) => {
      const text = JSON.stringify([now.state, now.step, now.steps, now.seconds, now.cause]);
      if (text === shown) return;
      [shown, latest] = [text, now];
      draw();
      this.rewards.look(now);
    };
    return { element, update, draw };
  }
}

function stepsOf(run) {
  return run.steps ? `${run.step ?? 0} / ${run.steps}` : String(run.step ?? 0);
}

// The rewards of the runs in view, and their health, fetched two at a time: a page of fifty runs
// asks for what is seen.
class Rewards {
  constructor(signal, health) {
    Object.assign(this, { signal, health });
    this.cells = new Map();
    this.queue = [];
    this.busy = 0;
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const cell = this.cells.get(entry.target.dataset.run);
        if (!cell) continue;
        cell.seen = entry.isIntersecting;
        if (cell.seen) this.#ask(cell);
      }
    });
    signal.addEventListener("abort", () => this.observer.disconnect());
  }

  cell(run) {
    const canvas = h("canvas", { class: "spark", "aria-hidden": "true" });
    const value = h("span", { class: "figure" }, "–");
    const element = h("span", { class: "reward-cell", data: { run: run.run_id } }, value, canvas);
    this.cells.set(run.run_id, { id: run.run_id, run, canvas, value, metrics: new Metrics(), stale: true, seen: false });
    this.observer.observe(element);
    return element;
  }

  look(run) {
    const cell = this.cells.get(run.run_id);
    cell.run = run;
    cell.stale = true;
    if (cell.seen) this.#ask(cell);
  }

  redraw() {
    for (const cell of this.cells.values()) sparkline(cell.metrics.series("reward")[1] ?? [], cell.canvas);
  }

  #ask(cell) {
    if (!cell.stale || this.queue.includes(cell)) return;
    this.queue.push(cell);
    this.#next();
  }

  async #next() {
    if (this.busy >= AT_ONCE || !this.queue.length) return;
    this.busy += 1;
    const cell = this.queue.shift();
    cell.stale = false;
    try {
      await cell.metrics.read(cell.id, this.signal);
      const [, rewards] = cell.metrics.series("reward");
      cell.value.textContent = fixed(rewards.at(-1) ?? null, 3);
      sparkline(rewards, cell.canvas);
      await this.health.look(cell.run);
    } catch (error) {
      if (!left(error)) cell.value.title = error.message;
    }
    this.busy -= 1;
    this.#next();
  }
}
