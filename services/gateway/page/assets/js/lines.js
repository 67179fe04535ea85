// Colours of lines, and the small line of a list: what needs no library.

import { h } from "./dom.js";
import { dark } from "./theme.js";

const LINES = {
  light: ["#146c4c", "#0b62b0", "#b04a00", "#7a3fb5", "#8a6a00", "#c0246f", "#3b6f7d", "#5d5d5d"],
  dark: ["#57c795", "#6db3f2", "#ff9d5c", "#c39af0", "#e3c04e", "#ff86bd", "#7fc4d4", "#b5b5b5"],
};

/** Return the colour of a line, by its place. */
export function lineColour(index) {
  const list = LINES[dark() ? "dark" : "light"];
  return list[index % list.length];
}

/** Draw a line of a few values without axes into a canvas; return the canvas. */
export function sparkline(values, canvas = h("canvas", { class: "spark", "aria-hidden": "true" })) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [96, 24];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const kept = values.filter(Number.isFinite);
  if (kept.length < 2) return canvas;
  const low = Math.min(...kept);
  const high = Math.max(...kept);
  context.strokeStyle = lineColour(0);
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.beginPath();
  kept.forEach((value, index) => {
    const x = 2 + (index / (kept.length - 1)) * (width - 4);
    const y = high === low ? height / 2 : height - 3 - ((value - low) / (high - low)) * (height - 6);
    if (index) context.lineTo(x, y);
    else context.moveTo(x, y);
  });
  context.stroke();
  return canvas;
}
