// Addresses of views.

/** Return the address of a run. */
export function runPath(run) {
  return `/runs/${encodeURIComponent(run)}`;
}

/** Return the address of the trees that a step trained on: the policy of the step before sampled them. */
export function treesOfStep(run, step) {
  return `${runPath(run)}/trees?policy_step=${Math.max(0, step - 1)}`;
}

/** Return the address of a tree. */
export function treePath(tree) {
  return `/trees/${encodeURIComponent(tree)}`;
}
