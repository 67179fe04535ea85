// A horizontal tidy tree: columns by depth, a row for each drawn end, parents amid their children.
// Its order is that of the document, so growth inserts rows and never reorders what is there.

/**
 * Return places of all drawn nodes, in order of their rows.
 *
 * An item is {key, node, more, column, row, parent}; `more` is the number of children that one
 * place stands for, and 0 for a node. Rows are numbers from 0, halves between them for parents.
 */
export function layout(model) {
  const items = [];
  let rows = 0;
  let columns = 0;
  if (!model.root) return { items, rows, columns };
  const stack = [enter(model, model.root, null)];
  items.push(stack[0].item);
  while (stack.length) {
    const top = stack[stack.length - 1];
    const { item } = top;
    columns = Math.max(columns, item.column + 1);
    if (top.next < top.children.length) {
      const inner = enter(model, top.children[top.next], item);
      top.next += 1;
      items.push(inner.item);
      stack.push(inner);
      continue;
    }
    if (top.rest && !top.restDone) {
      top.restDone = true;
      const more = { key: `${item.key}+`, node: item.node, more: top.rest, column: item.column + 1, row: rows, parent: item };
      rows += 1;
      items.push(more);
      top.last = more.row;
      top.first ??= more.row;
      columns = Math.max(columns, more.column + 1);
    }
    if (top.first === null) {
      item.row = rows;
      rows += 1;
    } else item.row = (top.first + top.last) / 2;
    stack.pop();
    const above = stack[stack.length - 1];
    if (above) {
      above.first ??= item.row;
      above.last = item.row;
    }
  }
  return { items, rows, columns };
}

function enter(model, node, parent) {
  const children = model.childrenOf(node);
  const rest = model.isOpen(node) ? node.children.length - children.length : 0;
  const item = { key: node.key, node, more: 0, column: parent ? parent.column + 1 : 0, row: 0, parent };
  return { item, children, rest, restDone: false, next: 0, first: null, last: null };
}
