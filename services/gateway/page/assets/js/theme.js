// Light and dark: as the system says, until the switch says otherwise.

import { h, icon } from "./dom.js";

const KEY = "banyan-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

/** Return whether the page is dark now. */
export function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}

/** Call `listener` at each change, until `signal` is aborted. */
export function onTheme(listener, signal) {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener), { once: true });
}

function changed() {
  for (const listener of listeners) listener();
}

/** Return the switch, and apply what was chosen before. */
export function themeSwitch() {
  const chosen = localStorage.getItem(KEY);
  if (chosen) document.documentElement.dataset.theme = chosen;
  const button = h("button", { type: "button", class: "quiet", on: { click: flip } });
  function label() {
    const name = dark() ? "Light colours" : "Dark colours";
    button.replaceChildren(icon(dark() ? "sun" : "moon"));
    button.setAttribute("aria-label", name);
    button.title = name;
  }
  function flip() {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem(KEY, next);
    label();
    changed();
  }
  system.addEventListener("change", () => {
    label();
    changed();
  });
  label();
  return button;
}
