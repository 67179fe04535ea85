// The keyboard on a tree: where an arrow leads from the selected node.

/** Return the item that `key` leads to, or null. Left goes up the path, right down it. */
export function neighbour(items, places, from, key) {
  if (!items.length) return null;
  if (!from || key === "Home") return items[0];
  if (key === "End") return items.reduce((low, item) => (item.row > low.row ? item : low), items[0]);
  if (key === "ArrowLeft") return from.parent;
  if (key === "ArrowRight") {
    const below = items.filter((item) => item.parent === from);
    return below[Math.floor((below.length - 1) / 2)] ?? null;
  }
  const step = key === "ArrowUp" ? -1 : 1;
  let best = null;
  for (const item of items) {
    const off = (item.row - from.row) * step;
    if (item.column === from.column && off > 0 && (!best || off < (best.row - from.row) * step)) best = item;
  }
  return best;
}

export const KEYS = [
  [["←", "→"], "to the parent, to the branches (opens them)"],
  [["↑", "↓"], "to the neighbour of the same depth"],
  [["Enter"], "details of the segment"],
  [["Space"], "open or fold the subtree"],
  [["+", "−", "0"], "zoom in, zoom out, all in view"],
  [["e", "c"], "open all, fold all"],
  [["Home", "End"], "to the prompt, to the last row"],
  [["Esc"], "close the details"],
];
