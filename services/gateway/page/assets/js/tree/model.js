// A tree as it is looked at: its nodes by lasting keys, and which subtrees are open.

const FIRST_CHILDREN = 24;

/** The key of a node survives growth: a segment that is forked later keeps the key of its beginning. */
export function keyOf(data) {
  return `${data.segment}:${data.start}`;
}

export class TreeModel {
  constructor() {
    this.nodes = new Map();
    this.root = null;
    this.leaves = 0;
    this.open = new Set();
    this.closed = new Set();
    this.shown = new Map();
  }

  /** Take a document; return the keys of nodes that were not there before. */
  update(document) {
    const before = this.nodes;
    this.document = document;
    this.nodes = new Map();
    const byIndex = new Map();
    for (const data of document.nodes) {
      const node = { key: keyOf(data), data, parent: null, children: [], depth: 0, leaves: 0, rewards: 0, scored: 0 };
      byIndex.set(data.i, node);
      this.nodes.set(node.key, node);
    }
    this.root = null;
    for (const node of byIndex.values()) {
      node.parent = byIndex.get(node.data.parent) ?? null;
      if (node.parent) node.parent.children.push(node);
      else this.root ??= node;
    }
    this.#sum();
    const fresh = [];
    if (before.size) for (const key of this.nodes.keys()) if (!before.has(key)) fresh.push(key);
    return fresh;
  }

  // Without recursion: a path of a thousand turns is deeper than the stack of a browser.
  #sum() {
    const order = [];
    const stack = this.root ? [this.root] : [];
    while (stack.length) {
      const node = stack.pop();
      order.push(node);
      for (const child of node.children) {
        child.depth = node.depth + 1;
        stack.push(child);
      }
    }
    for (let at = order.length - 1; at >= 0; at -= 1) {
      const node = order[at];
      const { leaf } = node.data;
      if (leaf || !node.children.length) node.leaves += 1;
      if (leaf && leaf.reward !== null) {
        node.rewards += leaf.reward;
        node.scored += 1;
      }
      if (node.parent) {
        node.parent.leaves += node.leaves;
        node.parent.rewards += node.rewards;
        node.parent.scored += node.scored;
      }
    }
    this.leaves = this.root?.leaves ?? 0;
    this.order = order;
  }

  isOpen(node) {
    return node.children.length > 0 && this.open.has(node.key);
  }

  /** Return the children that are drawn; the others are behind one "more" place. */
  childrenOf(node) {
    if (!this.isOpen(node)) return [];
    const most = this.shown.get(node.key) ?? FIRST_CHILDREN;
    return node.children.length <= most + 1 ? node.children : node.children.slice(0, most);
  }

  /** Return how many rows a node takes when it is drawn as it is. */
  #rows(node) {
    if (!this.isOpen(node)) return 1;
    const children = this.childrenOf(node);
    return children.length + (children.length < node.children.length ? 1 : 0);
  }

  /**
   * Open subtrees, those with most leaves first, until about `budget` rows are drawn.
   *
   * What a person closed stays closed, and nothing that is open is closed.
   */
  openUpTo(budget) {
    if (!this.root) return;
    const front = [];
    let rows = 1;
    const visit = (node) => {
      if (!node.children.length) return;
      if (this.isOpen(node)) {
        rows += this.#rows(node) - 1;
        for (const child of this.childrenOf(node)) visit(child);
      } else if (!this.closed.has(node.key)) front.push(node);
    };
    visit(this.root);
    while (front.length) {
      let best = 0;
      for (let at = 1; at < front.length; at += 1) if (front[at].leaves > front[best].leaves) best = at;
      const [node] = front.splice(best, 1);
      const more = Math.min(node.children.length, (this.shown.get(node.key) ?? FIRST_CHILDREN) + 1) - 1;
      if (rows + more > budget && node !== this.root && more > 0) continue;
      this.open.add(node.key);
      rows += more;
      for (const child of this.childrenOf(node)) if (child.children.length && !this.closed.has(child.key)) front.push(child);
    }
  }

  toggle(node) {
    if (!node.children.length) return;
    if (this.open.delete(node.key)) this.closed.add(node.key);
    else {
      this.open.add(node.key);
      this.closed.delete(node.key);
    }
  }

  showMore(node) {
    this.shown.set(node.key, Math.max(FIRST_CHILDREN, this.shown.get(node.key) ?? FIRST_CHILDREN) * 3);
  }

  expandAll() {
    for (const node of this.order) {
      this.open.add(node.key);
      if (node.children.length > FIRST_CHILDREN) this.shown.set(node.key, Infinity);
    }
    this.closed.clear();
  }

  collapseAll() {
    this.open.clear();
    this.shown.clear();
    this.closed.clear();
    if (this.root) this.open.add(this.root.key);
  }

  /** Open all above a node, so that it is drawn. */
  reveal(node) {
    for (let at = node.parent, child = node; at; child = at, at = at.parent) {
      this.open.add(at.key);
      this.closed.delete(at.key);
      const index = at.children.indexOf(child);
      if (index >= this.childrenOf(at).length) this.shown.set(at.key, index + FIRST_CHILDREN);
    }
  }
}

/** Return the text of a node. Without a tokenizer only the text of its whole segment is known. */
export function textOf(node) {
  const { data } = node;
  return data.text_of === "segment" ? `tokens ${data.start} to ${data.stop} of “${data.text}”` : data.text;
}

/** Return the mean reward of the leaves below a node, or its value; null without either. */
export function valueOf(node) {
  if (node.data.value !== null && node.data.value !== undefined) return node.data.value;
  return node.scored ? node.rewards / node.scored : null;
}

/** Return whether a node is a call of a tool: what the policy wrote before a tool's answer. */
export function isCall(node) {
  return node.data.kind === "POLICY" && (node.data.finish === "TOOL_CALL" || node.children.some((child) => child.data.kind === "TOOL"));
}
