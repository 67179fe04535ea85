// The curves of a run. A click on a step leads to its trees.

import { Chart } from "../chart.js";
import { h, put } from "../dom.js";
import { number, percent } from "../format.js";
import { runPath, treesOfStep } from "../paths.js";
import { go, setQuery } from "../router.js";
import { savedShare } from "../series.js";
import { plain } from "../text.js";

const UNIT = (u, low, high) => [Math.min(0, low), Math.max(1, high)];
const shares = (value) => percent(value, 0);

export class Curves {
  constructor(run, metrics, signal) {
    this.run = run;
    this.metrics = metrics;
    this.signal = signal;
    const pick = (step) => go(this.pathOf(step));
    const ofEvaluation = (step) => go(`${runPath(run)}/trees?purpose=eval&policy_step=${step}`);
    this.reward = new Chart("Reward", { names: ["reward"], pick, signal });
    this.accuracy = new Chart("Held-out accuracy", { names: ["accuracy"], interval: true, range: UNIT, show: percent, tick: shares, pick: ofEvaluation, signal });
    this.saved = new Chart("Tokens saved", { names: ["saved"], range: UNIT, show: shares, pick, signal });
    this.staleness = new Chart("Staleness, in steps", { names: ["mean", "largest"], range: UNIT, pick, signal });
    this.occupancy = new Chart("Engine occupancy", { names: ["occupancy"], range: UNIT, show: shares, pick, signal });
    this.any = new Chart("Any metric", { names: ["value"], pick, signal, head: this.#choice() });
    this.grid = h("div", { class: "grid" }, [this.reward, this.accuracy, this.saved, this.staleness, this.occupancy, this.any].map((chart) => chart.element));
    this.element = h("section", { "aria-label": "Curves" }, this.grid, h("p", { class: "muted small" }, "Click a point, or press Enter on it, for the trees of that step. Dashed lines: steps that doctor names, or that you came from."));
  }

  pathOf(step) {
    return treesOfStep(this.run, step);
  }

  #choice() {
    this.select = h("select", { id: "any-metric", on: { change: () => this.#chosen() } });
    return h("div", { class: "choice" }, h("label", { for: "any-metric" }, "Metric"), this.select);
  }

  #chosen() {
    setQuery({ metric: this.select.value });
    this.any.rename(this.select.value, [this.select.value]);
    this.any.set(this.metrics.series(this.select.value), this.any.marks);
  }

  #list() {
    const names = [...this.metrics.names].sort();
    if (names.length === this.select.options.length) return;
    const wanted = new URLSearchParams(location.search).get("metric");
    const before = this.select.value || wanted || (names.includes("entropy") ? "entropy" : names[0]);
    put(this.select, names.map((name) => h("option", { value: name, selected: name === before }, plain(name))));
    this.any.rename(this.select.value, [this.select.value]);
  }

  #heldOut({ name, graded, data }, marks) {
    if (this.accuracy.name !== name) {
      this.accuracy.rename(name, [graded ? "reward" : "accuracy"]);
      this.accuracy.unit(graded ? { show: number } : { range: UNIT, show: percent, tick: shares });
    }
    this.accuracy.end = this.metrics.last;
    this.accuracy.set(data, marks);
  }

  draw(marks) {
    const { metrics } = this;
    this.#list();
    this.reward.set(metrics.series("reward"), marks);
    this.#heldOut(metrics.heldOut(), marks);
    this.saved.set(metrics.series(savedShare), marks);
    this.staleness.set(metrics.series("staleness_mean", "staleness_max"), marks);
    if (this.select.value) this.any.set(metrics.series(this.select.value), marks);
    this.occupancy.set(metrics.series("engine_occupancy"), marks);
  }
}
