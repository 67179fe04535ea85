export function mountCompare(root) { root.textContent = 'compare'; }
