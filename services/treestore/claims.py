"""Claims: who may grow a tree, fenced by an epoch that only the store issues (PROTOCOL 3)."""

from sqlalchemy import Connection, select

from banyan.errors import NotFound, Refused
from banyan.v1 import tree_pb2
from services.treestore import growth, schema
from services.treestore.book import Book
from services.treestore.endings import drop, thin
from services.treestore.flush import flush
from services.treestore.loading import load_groups, load_spares, load_tallies, load_trees
from services.treestore.rows import GROWING, TreeRow
from services.treestore.settings import Settings

_UNUSABLE = "UNUSABLE:"  # no node can ever grow the tree; UNABLE: and all else is about one node
_RETURN_MS = 100  # after the first return; doubles with each, so that a tree that nobody can grow costs little
_RETURN_MOST_MS = 5_000


def claim(
    connection: Connection,
    tree_id: bytes,
    node: str,
    ticket: int,
    now_ms: int,
    settings: Settings,
    traceparent: str = "",
) -> int:
    """The next epoch of a tree; 0 if there is nothing to grow, or if a newer assignment than `ticket` is under way."""
    book, tree = _open(connection, tree_id, now_ms, settings)
    if tree.state != GROWING or (ticket and ticket < tree.ticket):
        return 0
    if tree.idle_claims >= tree.max_claims:
        _drop(connection, book, tree, "NO_PROGRESS")
        flush(connection, book)
        return 0
    book.change(tree)
    tree.claim_epoch += 1
    tree.idle_claims += 1
    tree.claim_node = node
    tree.claim_traceparent = tree.claim_traceparent or traceparent
    _extend(tree, now_ms, settings)
    flush(connection, book)
    return tree.claim_epoch


def renew(connection: Connection, tree_id: bytes, epoch: int, now_ms: int, settings: Settings) -> None:
    """Keeps a claim that is in force. Raises Refused if it is not."""
    book, tree = _open(connection, tree_id, now_ms, settings)
    _in_force(tree, epoch)
    if not tree.claim_node:  # a renewal that was on its way must not put off the next claim
        raise Refused(f"claim {epoch} of tree {tree_id.hex()[:12]} was handed back; drop the tree here", "STALE_EPOCH")
    _extend(book.change(tree), now_ms, settings)
    flush(connection, book)


def hand_back(connection: Connection, tree_id: bytes, epoch: int, reason: str, now_ms: int, settings: Settings) -> None:
    """Ends a claim without counting it as an attempt.

    The tree is queued again, at once after a drain, later otherwise; one that is UNUSABLE is dropped, with the reason.
    """
    book, tree = _open(connection, tree_id, now_ms, settings)
    _in_force(tree, epoch)
    if not tree.claim_node:  # handed back before; what the node still publishes counts until the next claim
        return
    book.change(tree)
    tree.idle_claims = max(0, tree.idle_claims - 1)
    tree.claim_node, tree.claim_due_ms = "", 0
    tree.returns += 1
    if reason.startswith(_UNUSABLE):
        _drop(connection, book, tree, reason)
    elif tree.returns > settings.max_returns:
        _drop(connection, book, tree, f"RETURNED: {reason}" if reason else "RETURNED")
    elif reason == "drain" or tree.returns == 1:
        growth.queue(book, tree, spec_of(connection, tree_id))
    else:
        tree.growth_due_ms = now_ms + min(_RETURN_MS << min(tree.returns, 10), _RETURN_MOST_MS)
    flush(connection, book)


def check_run(connection: Connection, tree_id: bytes, run_id: str) -> None:
    """Raises Refused if the tree belongs to another run: whoever asks may speak for one run only."""
    found = connection.scalar(select(schema.trees.c.run_id).where(schema.trees.c.tree_id == tree_id))
    if found not in (None, run_id):
        raise Refused(f"tree {tree_id.hex()[:12]} does not belong to run {run_id}", "OTHER_RUN")


def first_trace(connection: Connection, tree_id: bytes) -> str:
    """Traceparent of a tree's first claim."""
    return connection.scalar(select(schema.trees.c.claim_traceparent).where(schema.trees.c.tree_id == tree_id)) or ""


def spec_of(connection: Connection, tree_id: bytes) -> tree_pb2.TreeSpec:
    """What was opened."""
    data = connection.scalar(select(schema.trees.c.spec).where(schema.trees.c.tree_id == tree_id))
    return tree_pb2.TreeSpec.FromString(data or b"")


def _open(connection: Connection, tree_id: bytes, now_ms: int, settings: Settings) -> tuple[Book, TreeRow]:
    book = Book(now_ms, settings)
    load_trees(connection, book, [tree_id])
    tree = book.trees.get(tree_id)
    if tree is None:
        raise NotFound(f"there is no tree {tree_id.hex()[:16] or 'without an id'}")
    return book, tree


def _drop(connection: Connection, book: Book, tree: TreeRow, reason: str) -> None:
    load_groups(connection, book, [(tree.run_id, tree.group_id)])
    load_spares(connection, book)
    load_tallies(connection, book, [tree.run_id])
    drop(book, tree, reason)
    thin(book, book.group(tree))


def _in_force(tree: TreeRow, epoch: int) -> None:
    if tree.state != GROWING:
        state = tree_pb2.TreeState.Name(tree_pb2.TreeState.ValueType(tree.state)).removeprefix("TREE_STATE_")
        raise Refused(f"tree {tree.tree_id.hex()[:12]} is {state} and grows no more", "NOT_GROWING")
    if epoch != tree.claim_epoch:
        raise Refused(
            f"claim {epoch} of tree {tree.tree_id.hex()[:12]} is over: {tree.claim_epoch} is in force; drop the tree here",
            "STALE_EPOCH",
        )


def _extend(tree: TreeRow, now_ms: int, settings: Settings) -> None:
    tree.claim_due_ms = now_ms + settings.claim_ms
    tree.growth_due_ms = tree.claim_due_ms + settings.requeue_ms
