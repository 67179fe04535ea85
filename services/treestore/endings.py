"""The ends of trees: closed, dropped or consumed, with what follows for their groups, sums and the log."""

from banyan.v1 import events_pb2, tree_pb2
from services.treestore import closing, surplus
from services.treestore.book import Book
from services.treestore.rows import CLOSED, CONSUMED, DROPPED, SCORING, GroupRow, GroupState, TreeRow


def settle(book: Book) -> None:
    """Closes every grown tree that the book touched and that is owed no score."""
    for tree_id in list(book.touched):
        tree = book.trees.get(tree_id)
        if tree is not None and tree.state == SCORING:
            part = book.part(tree_id)
            if not closing.owed(part.leaves, tree.scorers, part.scores):
                _close(book, tree)
    for group in [group for group in {id(g): g for g in map(book.group, book.ended)}.values() if group.take]:
        thin(book, group)


def thin(book: Book, group: GroupRow) -> None:
    """Gives up the trees that a group needs no more."""
    for tree in surplus.surplus(group, [t for t in book.trees.values() if t.group_id == group.group_id]):
        give_up(book, tree, surplus.REASON)


def give_up(book: Book, tree: TreeRow, reason: str) -> None:
    """Gives up a tree that no batch holds, whether it is closed or not."""
    if tree.state == CLOSED:
        discard(book, tree, reason)
    else:
        drop(book, tree, reason)


def _close(book: Book, tree: TreeRow) -> None:
    part = book.part(tree.tree_id)
    rewards = closing.rewards(part.leaves, tree.scorers, part.scores)
    values = [reward for reward in rewards.values() if reward is not None]
    tally = book.tally(tree)
    tally.scored += len(values)
    tally.unscorable += len(rewards) - len(values)
    tally.reward_sum += sum(values)
    tally.correct += sum(value >= 1.0 for value in values)
    tree.mean_reward = sum(values) / len(values) if values else None
    _end(book, tree, CLOSED, "")


def drop(book: Book, tree: TreeRow, reason: str) -> None:
    """Gives a tree up that is not over yet."""
    _end(book, tree, DROPPED, reason)


def _end(book: Book, tree: TreeRow, state: int, reason: str) -> None:
    book.change(tree)
    tree.state, tree.reason, tree.closed_ms = state, reason, book.now_ms
    tree.claim_due_ms = tree.growth_due_ms = tree.score_due_ms = tree.remind_due_ms = 0
    group = book.group(tree)
    group.done += 1
    group.dropped += state == DROPPED
    book.changed_groups.add((group.run_id, group.group_id))
    whole = group.done == group.size
    if whole:
        book.move_group(group, GroupState.DROPPED if group.dropped == group.size else GroupState.CLOSED, reason)
    book.ended.append(tree)
    _tell(book, tree, whole)


def consume(book: Book, tree: TreeRow) -> None:
    """A batch holds the tree from now on."""
    book.change(tree).state = CONSUMED


def discard(book: Book, tree: TreeRow, reason: str) -> None:
    """Gives a closed tree up: its group teaches nothing, or can do without it, or is too old."""
    book.change(tree)
    tree.state, tree.reason = DROPPED, reason
    book.group(tree).dropped += 1
    _tell(book, tree, True)


def consume_group(book: Book, group: GroupRow) -> None:
    """A batch holds the group from now on."""
    book.move_group(group, GroupState.CONSUMED)


def discard_group(book: Book, group: GroupRow, reason: str) -> None:
    """A batch gave the group up."""
    book.move_group(group, GroupState.DROPPED, reason)


def _tell(book: Book, tree: TreeRow, group_closed: bool) -> None:
    event = events_pb2.TreeClosed(
        run_id=tree.run_id,
        tree_id=tree.tree_id,
        group_id=tree.group_id,
        state=tree_pb2.TreeState.ValueType(tree.state),
        reason=tree.reason,
        group_closed=group_closed,
        purpose=tree_pb2.TreePurpose.ValueType(tree.purpose),
        label=tree.label,
    )
    book.closings.setdefault(tree.run_id, []).append(event)
