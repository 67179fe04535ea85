// A chart of lines over steps, drawn by uPlot: pointed at and walked by keys, with a step to choose.

import uPlot from "../vendor/uplot/uPlot.js";
import { h, put } from "./dom.js";
import { number } from "./format.js";
import { lineColour } from "./lines.js";
import { dark, onTheme } from "./theme.js";

const HEIGHT = 184;

export class Chart {
  /**
   * `names` are those of the lines. With `interval` the data holds a lower and an upper bound after
   * the one line. `tick` writes the numbers of the axis, `show` those that are read out. `pick` is
   * called with the step that was clicked, or chosen by Enter.
   */
  constructor(name, { names, note = "", interval = false, show = number, tick = show, range = null, pick = null, height = HEIGHT, head = null, signal }) {
    Object.assign(this, { name, names, interval, show, tick, range, pick, height });
    this.data = [[]];
    this.marks = [];
    this.readout = h("span", { class: "readout figure" });
    this.area = h("div", { class: "plot", tabindex: "0", role: "slider", "aria-label": `${name} by step`, "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0, "aria-valuetext": "no steps yet" });
    this.blank = h("p", { class: "blank muted" }, "No values yet.");
    this.heading = head ? null : h("h3", {}, name);
    this.element = h("figure", { class: "box chart" }, h("figcaption", {}, head ?? this.heading, this.readout), h("div", { class: "plot-place" }, this.area, this.blank), note && h("p", { class: "note muted" }, note));
    this.area.addEventListener("keydown", (event) => this.#key(event));
    this.area.addEventListener("click", () => this.#picked());
    this.area.classList.toggle("picks", pick !== null);
    const observer = new ResizeObserver(() => this.#size());
    observer.observe(this.area);
    onTheme(() => this.#make(), signal);
    signal.addEventListener("abort", () => {
      observer.disconnect();
      this.plot?.destroy();
    });
  }

  /** Set the data: steps, then the values of each line. `marks` are steps to draw a line at. */
  set(data, marks = this.marks) {
    const had = this.data[0].length > 0;
    this.data = data;
    this.marks = marks;
    this.blank.hidden = data[0].length > 0;
    if (this.plot && had) this.plot.setData(data);
    else this.#make();
    this.#read(this.at ?? data[0].length - 1);
  }

  /** Change which lines there are. */
  rename(name, names) {
    this.name = name;
    this.names = names;
    this.at = null;
    this.data = [[]];
    if (this.heading) this.heading.textContent = name;
    this.area.setAttribute("aria-label", `${name} by step`);
  }

  /** Change how values are written, and the range of their axis; the next data are drawn so. */
  unit({ show, tick = show, range = null }) {
    Object.assign(this, { show, tick, range });
  }

  #make() {
    this.plot?.destroy();
    this.plot = null;
    const width = this.area.clientWidth;
    if (!width || !this.data[0].length) return;
    this.plot = new uPlot(this.#options(width), this.data, this.area);
  }

  #options(width) {
    const ink = dark() ? "#a5aea8" : "#58605b";
    const grid = { stroke: dark() ? "#2a302c" : "#e6e9e5", width: 1 };
    const axis = { stroke: ink, grid, ticks: { show: false }, font: "11px system-ui, sans-serif", labelSize: 0 };
    const lines = this.names.map((label, index) => ({ label, stroke: lineColour(index), width: 2, spanGaps: true, points: { show: this.data[0].length < 4 || this.interval, size: 6 } }));
    const bounds = this.interval ? [{ stroke: "transparent", points: { show: false }, spanGaps: true }, { stroke: "transparent", points: { show: false }, spanGaps: true }] : [];
    return {
      width,
      height: this.height,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 8 } },
      scales: { x: { time: false, range: () => this.#steps() }, y: this.range ? { range: this.range } : {} },
      axes: [{ ...axis, size: 24, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, { ...axis, size: 48, values: (u, ticks, index, space, step) => ticks.map((tick) => (this.show === number ? ofStep(tick, step) : this.tick(tick))) }],
      series: [{}, ...lines, ...bounds],
      bands: this.interval ? [{ series: [3, 2], fill: `${lineColour(0)}33` }] : [],
      hooks: { setCursor: [(u) => this.#read(u.cursor.idx ?? this.data[0].length - 1)], draw: [(u) => this.#drawMarks(u)] },
    };
  }

  // From the first to the last step, or to the last one of all charts beside this one.
  #steps() {
    const [steps] = this.data;
    const [low, high] = [steps[0], Math.max(steps.at(-1), this.end ?? 0)];
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  #drawMarks(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = dark() ? "#f2c14e" : "#7a5200";
    ctx.setLineDash([4, 4]);
    for (const step of this.marks) {
      const x = u.valToPos(step, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  #size() {
    const width = this.area.clientWidth;
    if (!this.plot) this.#make();
    else if (width && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
  }

  // What is read out: the step under the cursor, or the last one.
  #read(index) {
    const [steps] = this.data;
    if (index === null || index < 0 || steps[index] === undefined) {
      put(this.readout);
      return;
    }
    const values = this.names.map((name, line) => [name, this.data[line + 1]?.[index] ?? null]);
    const text = (value) => (value === null ? "none" : this.show(value));
    const bounds = this.interval && this.data[2][index] !== null ? ` (${this.show(this.data[2][index])} to ${this.show(this.data[3][index])})` : "";
    put(this.readout, h("span", { class: "muted" }, `step ${steps[index]}`), values.map(([name, value], line) => h("span", { class: "value" }, this.names.length > 1 && swatch(line), this.names.length > 1 && `${name} `, text(value) + bounds)));
    this.area.setAttribute("aria-valuemin", steps[0]);
    this.area.setAttribute("aria-valuemax", steps.at(-1));
    this.area.setAttribute("aria-valuenow", steps[index]);
    this.area.setAttribute("aria-valuetext", `step ${steps[index]}, ${values.map(([name, value]) => `${name} ${text(value)}${bounds}`).join(", ")}`);
  }

  #key(event) {
    const last = this.data[0].length - 1;
    const to = { ArrowLeft: (this.at ?? last + 1) - 1, ArrowRight: (this.at ?? last - 1) + 1, Home: 0, End: last }[event.key];
    if (event.key === "Enter" && this.at !== null && this.at !== undefined) this.#picked(this.at);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.at = Math.min(last, Math.max(0, to));
    this.plot?.setCursor({ left: this.plot.valToPos(this.data[0][this.at], "x"), top: 0 });
    this.#read(this.at);
  }

  #picked(index = this.plot?.cursor.idx) {
    const step = this.data[0][index];
    if (this.pick && step !== undefined) this.pick(step);
  }
}

// A tick with as many decimals as tell it from the next one.
function ofStep(tick, step) {
  if (Math.abs(tick) >= 10000) return tick.toExponential(1);
  return tick.toFixed(Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9))));
}

/** Return a small line in the colour of a line. */
export function swatch(index) {
  return h("i", { class: "swatch-line", style: { background: lineColour(index) } });
}
