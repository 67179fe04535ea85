// What the list says of a run beside its reward: how fast it goes, and its most urgent finding.

import { get, left } from "../api.js";
import { h } from "../dom.js";
import { ago, pace } from "../format.js";
import { runPath } from "../paths.js";
import { plain, sentence } from "../text.js";

const EVERY_MS = 10000;
const SLOW_S = 60;
const SLOW_STEPS = 5;

/** The health of runs, asked for when one is looked at: a live one every ten seconds, others once a state. */
export class Health {
  constructor(signal, changed) {
    Object.assign(this, { signal, changed });
    this.known = new Map();
  }

  async look(run) {
    const known = this.known.get(run.run_id);
    const now = performance.now();
    if (known?.state === run.state && (!run.live || now - known.at < EVERY_MS)) return;
    this.known.set(run.run_id, { ...known, state: run.state, at: now });
    try {
      const document = await get(`/api/runs/${encodeURIComponent(run.run_id)}/health`, this.signal);
      this.known.set(run.run_id, { state: run.state, at: now, document });
      this.changed(run.run_id);
    } catch (error) {
      if (!left(error)) this.known.delete(run.run_id); // asked again with the next look
    }
  }

  /** Return the line below the steps: the pace, or for how long there has been no step. */
  pace(run) {
    const document = this.known.get(run.run_id)?.document;
    if (!Number.isFinite(document?.step_seconds)) return null;
    const silent = (Date.now() - Date.parse(document.newest_step)) / 1000;
    const waits = run.state === "TRAINING" && silent > Math.max(SLOW_S, SLOW_STEPS * document.step_seconds);
    return h("div", { class: waits ? "small slow" : "muted small" }, waits ? `last step ${ago(document.newest_step)}` : `${pace(document.step_seconds)} a step`);
  }

  /** Return a mark that leads to what doctor says; null where it says nothing. */
  badge(run) {
    const { finding, findings } = this.known.get(run.run_id)?.document ?? {};
    if (!finding) return null;
    const more = findings > 1 ? ` +${findings - 1}` : "";
    const words = sentence(finding.sentence);
    return h("a", { class: finding.severity === "error" ? "badge bad" : "badge", href: `${runPath(run.run_id)}?at=doctor`, title: words, "aria-label": `Doctor's ${plain(finding.severity)}: ${words}` }, `${plain(finding.rule)}${more}`);
  }
}
