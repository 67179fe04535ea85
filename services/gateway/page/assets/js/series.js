// Metrics of a run as series: those that every run has, and those computed from them.

import { get } from "./api.js";

/** All steps and evaluations of a run; it takes new ones as they come. */
export class Metrics {
  constructor() {
    this.byStep = new Map();
    this.evaluations = [];
    this.names = new Set();
  }

  add(document) {
    for (const step of document.steps ?? []) {
      if (!this.byStep.has(step.step)) for (const name of Object.keys(step)) if (name !== "step") this.names.add(name);
      this.byStep.set(step.step, step);
    }
    if (document.evaluations?.length) this.evaluations = document.evaluations;
  }

  /** Read the steps that are not here yet: an answer holds some thousands, and says whether there are more. */
  async read(run, signal) {
    for (let more = true; more; ) {
      const after = this.byStep.size ? `?after=${this.last}` : "";
      const page = await get(`/api/runs/${encodeURIComponent(run)}/metrics${after}`, signal);
      this.add(page);
      more = page.more === true && page.steps.length > 0;
    }
    return this;
  }

  get last() {
    return Math.max(0, ...this.byStep.keys());
  }

  /** Return whether steps are missing before the first of `steps`: they went by while no one listened. */
  missing(steps) {
    return steps.length > 0 && steps[0].step > this.last + 1;
  }

  /** Return the steps, then the values of each name. A name may be a function of a step. */
  series(...names) {
    const steps = [...this.byStep.keys()].sort((a, b) => a - b);
    const value = (step, name) => {
      const found = typeof name === "function" ? name(this.byStep.get(step)) : this.byStep.get(step)[name];
      return Number.isFinite(found) ? found : null;
    };
    const columns = names.map((name) => steps.map((step) => value(step, name)));
    const kept = steps.map((_, at) => at).filter((at) => columns.some((column) => column[at] !== null));
    return [kept.map((at) => steps[at]), ...columns.map((column) => kept.map((at) => column[at]))];
  }

  // The last evaluation names no step: it measures the policy of the last one.
  #stepOf(evaluation) {
    return Number.isFinite(evaluation.step) ? evaluation.step : this.last;
  }

  /** Return whether rewards of held-out rows lie between right and wrong, so that accuracy has no meaning. */
  get graded() {
    return this.evaluations.some((one) => Number.isFinite(one.accuracy) && Math.abs(one.mean_reward - one.accuracy) > 1e-9);
  }

  /**
   * Return the evaluations of one kind: `data` holds steps, accuracy, and the bounds of its interval;
   * `name` says what is measured, `last` is the newest evaluation, `value` its result, `step` its step.
   * Where rewards are graded the result is their mean, which has no bounds.
   */
  heldOut() {
    const kinds = ["greedy", "voted", "sampled"];
    const kind = kinds.find((name) => this.evaluations.some((one) => one.label.endsWith(name)));
    const kept = this.evaluations.filter((one) => (!kind || one.label.endsWith(kind)) && Number.isFinite(one.accuracy));
    const byStep = new Map(kept.map((one) => [this.#stepOf(one), one]));
    const steps = [...byStep.keys()].sort((a, b) => a - b);
    const of = (read) => steps.map((step) => read(byStep.get(step)) ?? null);
    const { graded } = this;
    const result = (one) => (graded ? one.mean_reward : one.accuracy);
    const bounds = [0, 1].map((side) => of((one) => (graded ? null : one.wilson_95?.[side])));
    const last = byStep.get(steps.at(-1)) ?? null;
    return { kind, graded, name: graded ? "Held-out reward" : "Held-out accuracy", data: [steps, of(result), ...bounds], last, value: last && result(last), step: steps.at(-1) ?? null };
  }
}

/** Return the share of path tokens of a step that trees did not have to sample or compute again. */
export function savedShare(step) {
  return step.path_tokens > 0 ? 1 - step.unique_tokens / step.path_tokens : null;
}
