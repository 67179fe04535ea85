export function mountTrees(root) { root.textContent = 'trees'; }
