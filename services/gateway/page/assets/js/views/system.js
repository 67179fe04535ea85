export function mountSystem(root) { root.textContent = 'system'; }
