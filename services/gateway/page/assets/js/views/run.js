export function mountRun(root) { root.textContent = 'run'; }
