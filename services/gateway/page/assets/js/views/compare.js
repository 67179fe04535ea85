// Two or more runs on one chart, by any metric that they have.

import { Chart, swatch } from "../chart.js";
import { h, put } from "../dom.js";
import { count, fixed, number } from "../format.js";
import { runPath } from "../paths.js";
import { setQuery, title } from "../router.js";
import { Metrics } from "../series.js";
import { empty, fill } from "../states.js";
import { plain } from "../text.js";
import { onTheme } from "../theme.js";
import { table } from "./parts.js";

const MOST = 8;

export function mount(root, params, query, signal) {
  title("Compare");
  const runs = (query.get("runs") ?? "").split(",").filter(Boolean).slice(0, MOST);
  const host = h("div", { class: "stack" });
  root.append(h("div", { class: "head" }, h("div", {}, h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: "/runs" }, "Runs")), h("h1", {}, "Compare runs"))), host);
  if (runs.length < 2) {
    host.append(empty("Nothing to compare", "Choose two or more ", h("a", { href: "/runs" }, "runs"), "."));
    return;
  }
  fill(host, "metrics", () => Promise.all(runs.map((run) => new Metrics().read(run, signal))), (all) => shown(runs, all, query, signal), signal);
}

function shown(runs, all, query, signal) {
  const names = [...new Set(all.flatMap((metrics) => [...metrics.names]))].sort();
  let metric = names.includes(query.get("metric")) ? query.get("metric") : names.includes("reward") ? "reward" : (names[0] ?? "reward");
  const choice = h("select", { id: "metric", on: { change: () => ((metric = choice.value), setQuery({ metric }), draw()) } }, names.map((name) => h("option", { value: name, selected: name === metric }, plain(name))));
  const chart = new Chart("Metric", { names: runs.map(plain), height: 360, signal, head: h("div", { class: "choice" }, h("label", { for: "metric" }, "Metric"), choice) });
  const below = h("div", {});
  function draw() {
    chart.rename(metric, runs.map(plain));
    chart.set(joined(all.map((metrics) => metrics.series(metric))));
    put(below, table("Last values", ["Run", "#Steps", "#Last", "#Mean of ten", heldOutName(all)], runs.map((run, index) => row(run, all[index], metric, index))));
  }
  onTheme(draw, signal);
  draw();
  return [chart.element, below];
}

/** Return the name of the column of evaluations: runs with graded rewards have no accuracy. */
function heldOutName(all) {
  const graded = all.filter((metrics) => metrics.graded).length;
  return graded === all.length ? "#Held-out reward" : graded ? "#Held-out result" : "#Held-out accuracy";
}

function row(run, metrics, metric, index) {
  const [steps, values] = metrics.series(metric);
  const ten = values.slice(-10).filter((value) => value !== null);
  const { graded, value, step } = metrics.heldOut();
  const dated = step !== null && step !== (steps.at(-1) ?? 0) && h("div", { class: "muted small" }, `of step ${count(step)}`);
  return h(
    "tr",
    {},
    h("th", { scope: "row", class: "wide" }, swatch(index), h("a", { href: runPath(run) }, plain(run))),
    h("td", { class: "num" }, String(steps.at(-1) ?? 0)),
    h("td", { class: "num" }, number(values.at(-1) ?? NaN)),
    h("td", { class: "num" }, ten.length ? number(ten.reduce((sum, value) => sum + value, 0) / ten.length) : "–"),
    h("td", { class: "num" }, fixed(value ?? NaN, 3), graded && h("div", { class: "muted small" }, "mean reward"), dated),
  );
}

/** Return series of several runs over the union of their steps. */
function joined(series) {
  const steps = [...new Set(series.flatMap(([own]) => own))].sort((a, b) => a - b);
  const columns = series.map(([own, values]) => {
    const byStep = new Map(own.map((step, at) => [step, values[at]]));
    return steps.map((step) => byStep.get(step) ?? null);
  });
  return [steps, ...columns];
}
