// Whether the gateway can be heard: streams and calls report here, the line in the header shows it.

import { h } from "./dom.js";

const lost = new Set();
const line = h("span", { class: "offline", role: "status" });

function show() {
  const text = lost.size ? "Connection lost. Trying again…" : "";
  if (line.textContent !== text) line.textContent = text;
}

export const connection = {
  line,
  lost(who) {
    lost.add(who);
    show();
  },
  back(who) {
    lost.delete(who);
    show();
  },
};
