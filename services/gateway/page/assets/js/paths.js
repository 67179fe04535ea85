// Addresses of views.

/** Return the address of a run. */
export function runPath(run) {
  return `/runs/${encodeURIComponent(run)}`;
}

/** Return the address of the trees that a training step used, whichever policies sampled them. */
export function treesOfStep(run, step) {
  return `${runPath(run)}/trees?step=${step}`;
}

/** Return the address of a tree. */
export function treePath(tree) {
  return `/trees/${encodeURIComponent(tree)}`;
}
