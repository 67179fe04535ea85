// Colours of a tree: blue and orange apart from a neutral middle, which all kinds of colour
// blindness keep apart; one hue from light to dark where there is only more and less.

import { valueOf } from "./model.js";
import { fixed, number, signed } from "../format.js";

const DIVERGING = {
  light: ["#a34a00", "#d97a1f", "#eeb679", "#8f948f", "#85b7e0", "#3585c6", "#0b559f"],
  dark: ["#ff9a3d", "#e08a3c", "#b9814f", "#8f9591", "#5f93bd", "#4ba0e3", "#73bdff"],
};
const SEQUENTIAL = {
  light: ["#c9c3dd", "#a99fd0", "#8576bd", "#654fa6", "#462a8c"],
  dark: ["#4b4468", "#665a94", "#8474bd", "#a697dd", "#cdc2f7"],
};
const NOTHING = { light: "#bfc4c0", dark: "#4f5551" };

export const MEASURES = [
  ["value", "Value", "Mean reward of the leaves below"],
  ["advantage", "Advantage", "How much better than what it is compared with"],
  ["entropy", "Entropy", "How unsure the policy was, in nat"],
  ["policy_step", "Policy", "The version of the weights that sampled it"],
];

function read(measure, node) {
  if (measure === "value") return valueOf(node);
  return node.data[measure] ?? null;
}

/** Return the scale of a measure over a tree: {colour(node), read(node), show(value), ticks, stops}. */
export function scaleOf(measure, models, dark) {
  const theme = dark ? "dark" : "light";
  let low = Infinity;
  let high = -Infinity;
  for (const model of models) {
    for (const node of model.order ?? []) {
      const value = read(measure, node);
      if (value !== null && Number.isFinite(value)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
  }
  [low, high] = ends(measure, low, high);
  const stops = (measure === "value" || measure === "advantage" ? DIVERGING : SEQUENTIAL)[theme];
  const at = (value) => mix(stops, high === low ? 0.5 : (value - low) / (high - low));
  return {
    measure,
    stops,
    low,
    high,
    none: NOTHING[theme],
    read: (node) => read(measure, node),
    at,
    show: (value) => words(measure, value),
    colour(node) {
      const value = read(measure, node);
      return value === null ? NOTHING[theme] : at(value);
    },
  };
}

// Rewards lie in 0..1 mostly: the ends stay there, so that two trees can be compared by colour.
function ends(measure, low, high) {
  if (measure === "advantage") {
    const size = Math.max(Math.abs(low), Math.abs(high));
    return Number.isFinite(size) && size > 0 ? [-size, size] : [-1, 1];
  }
  if (measure === "value") return low >= 0 && high <= 1 ? [0, 1] : Number.isFinite(low) ? [low, high] : [0, 1];
  if (measure === "entropy") return Number.isFinite(low) ? [low, high] : [0, 1];
  return Number.isFinite(low) ? [low, high] : [0, 0];
}

function words(measure, value) {
  if (value === null || value === undefined) return "none";
  if (measure === "advantage") return signed(value);
  if (measure === "policy_step") return `step ${number(value, 0)}`;
  return fixed(value, 2);
}

function mix(stops, share) {
  const place = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const part = place - index;
  const [from, to] = [rgb(stops[index]), rgb(stops[index + 1])];
  return `rgb(${from.map((channel, k) => Math.round(channel + (to[k] - channel) * part)).join(" ")})`;
}

function rgb(hex) {
  return [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));
}

/** Return black or white, by which a text on `colour` can be read. */
export function inkOn(colour) {
  const parts = colour.startsWith("#") ? rgb(colour) : colour.match(/\d+/g).map(Number);
  const [r, g, b] = parts.map((channel) => {
    const c = channel / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#0b0d0c" : "#ffffff";
}
