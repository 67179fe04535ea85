export function mountRuns(root) { root.textContent = 'runs'; }
