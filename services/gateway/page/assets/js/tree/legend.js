// What the colours of a tree stand for.

import { h } from "../dom.js";
import { MEASURES } from "./scale.js";

/** Return the legend of a scale. */
export function legend(scale) {
  const [, name, meaning] = MEASURES.find(([measure]) => measure === scale.measure);
  const strip = h("span", { class: "strip", style: { background: `linear-gradient(90deg, ${scale.stops.join(", ")})` } });
  const one = scale.low === scale.high;
  if (one) strip.style.background = scale.at(scale.low);
  return h(
    "div",
    { class: "legend" },
    h("span", { class: "legend-name", title: meaning }, name),
    h("span", { class: "figure" }, scale.show(scale.low)),
    strip,
    !one && h("span", { class: "figure" }, scale.show(scale.high)),
    h("span", { class: "swatch", style: { background: scale.none } }),
    h("span", {}, "none"),
    h("span", { class: "shapes" }, h("i", { class: "shape call" }), "tool call", h("i", { class: "shape answer" }), "its answer", h("i", { class: "shape forced" }), "given"),
  );
}
