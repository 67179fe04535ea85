"""Claims: who may grow a tree, fenced by an epoch that only the store issues (PROTOCOL 3)."""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from banyan.errors import NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import tree_pb2
from services.treestore.lifecycle import assignments
from services.treestore.lifecycle.transitions import drop, thin
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.load import load_groups, load_spares, load_tallies, load_trees
from services.treestore.unit_of_work.rows import GROWING, TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

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
    """The next epoch of a tree; 0 if there is nothing to grow, or if `ticket` is not that of its newest assignment."""
    book, tree = _open(connection, tree_id, now_ms, settings)
    if tree.state != GROWING or ticket != tree.ticket:
        return 0
    attempt = not _kept(tree, now_ms, settings)
    if attempt and tree.idle_claims >= tree.max_claims:
        _drop(connection, book, tree, Reason.NO_PROGRESS)
        flush(connection, book)
        return 0
    book.change(tree)
    tree.claim_epoch += 1
    tree.idle_claims += attempt
    tree.claim_node = node
    tree.claim_traceparent = tree.claim_traceparent or traceparent
    _extend(tree, now_ms, settings)
    flush(connection, book)
    return tree.claim_epoch


def renew(
    connection: Connection, tree_id: bytes, epoch: int, now_ms: int, settings: Settings
) -> None:
    """Keeps a claim that is in force. Raises Refused if it is not."""
    [outcome] = renew_all(connection, [(tree_id, epoch)], "", now_ms, settings)
    if outcome is not None:
        raise outcome


def renew_all(
    connection: Connection,
    held: Sequence[tuple[bytes, int]],
    run_id: str,
    now_ms: int,
    settings: Settings,
) -> list[NotFound | Refused | None]:
    """Keeps those of the claims (tree and epoch) that are in force, of trees of `run_id` if it is named; why not, of the
    others. Trees and claims are read and written together."""
    book = UnitOfWork(now_ms, settings)
    load_trees(connection, book, {tree_id for tree_id, _ in held})
    outcomes: list[NotFound | Refused | None] = []
    for tree_id, epoch in held:
        try:
            _extend(book.change(_renewable(_known(book, tree_id), epoch, run_id)), now_ms, settings)
            outcomes.append(None)
        except (NotFound, Refused) as error:
            outcomes.append(error)
    flush(connection, book)
    return outcomes


def _renewable(tree: TreeRow, epoch: int, run_id: str) -> TreeRow:
    if run_id and tree.run_id != run_id:
        raise _other_run(tree.tree_id, run_id)
    _in_force(tree, epoch)
    if not tree.claim_node:  # a renewal that was on its way must not put off the next claim
        raise Refused(
            f"claim {epoch} of tree {tree.tree_id.hex()[:12]} was handed back; drop the tree here",
            Reason.STALE_EPOCH,
        )
    return tree


def check_held(connection: Connection, tree_id: bytes, epoch: int) -> None:
    """Raises NotFound, or Refused if the claim is not in force."""
    book = UnitOfWork(0, Settings())
    load_trees(connection, book, [tree_id])
    _in_force(_known(book, tree_id), epoch)


def hand_back(
    connection: Connection,
    tree_id: bytes,
    epoch: int,
    reason: str,
    now_ms: int,
    settings: Settings,
    *,
    joined: bool = False,
) -> None:
    """Ends a claim without counting it as an attempt.

    The tree is queued again, at once after a drain, later otherwise; one that is UNUSABLE is dropped, with the reason,
    unless a joined node says so: it speaks for itself alone.
    """
    book, tree = _open(connection, tree_id, now_ms, settings)
    _in_force(tree, epoch)
    if (
        not tree.claim_node
    ):  # handed back before; what the node still publishes counts until the next claim
        return
    book.change(tree)
    tree.idle_claims = max(0, tree.idle_claims - 1)
    tree.claim_node, tree.claim_due_ms = "", 0
    tree.returns += 1
    if reason.startswith(_UNUSABLE) and not joined:
        _drop(connection, book, tree, reason)
    elif tree.returns > settings.max_returns:
        _drop(connection, book, tree, f"RETURNED: {reason}" if reason else "RETURNED")
    elif reason == "drain" or tree.returns == 1:
        assignments.queue(book, tree, spec_of(connection, tree_id))
    else:
        tree.growth_due_ms = now_ms + min(_RETURN_MS << min(tree.returns, 10), _RETURN_MOST_MS)
    flush(connection, book)


def check_run(connection: Connection, tree_id: bytes, run_id: str) -> None:
    """Raises Refused if the tree belongs to another run: whoever asks may speak for one run only."""
    found = connection.scalar(
        select(schema.trees.c.run_id).where(schema.trees.c.tree_id == tree_id)
    )
    if found not in (None, run_id):
        raise _other_run(tree_id, run_id)


def _other_run(tree_id: bytes, run_id: str) -> Refused:
    return Refused(f"tree {tree_id.hex()[:12]} does not belong to run {run_id}", Reason.OTHER_RUN)


def first_trace(connection: Connection, tree_id: bytes) -> str:
    """Traceparent of a tree's first claim."""
    return (
        connection.scalar(
            select(schema.trees.c.claim_traceparent).where(schema.trees.c.tree_id == tree_id)
        )
        or ""
    )


def spec_of(connection: Connection, tree_id: bytes) -> tree_pb2.TreeSpec:
    """What was opened."""
    data = connection.scalar(select(schema.trees.c.spec).where(schema.trees.c.tree_id == tree_id))
    return tree_pb2.TreeSpec.FromString(data or b"")


def _open(
    connection: Connection, tree_id: bytes, now_ms: int, settings: Settings
) -> tuple[UnitOfWork, TreeRow]:
    book = UnitOfWork(now_ms, settings)
    load_trees(connection, book, [tree_id])
    return book, _known(book, tree_id)


def _known(book: UnitOfWork, tree_id: bytes) -> TreeRow:
    if tree_id not in book.trees:
        raise NotFound(f"there is no tree {tree_id.hex()[:16] or 'without an id'}")
    return book.trees[tree_id]


def _drop(connection: Connection, book: UnitOfWork, tree: TreeRow, reason: str) -> None:
    load_groups(connection, book, [(tree.run_id, tree.group_id)])
    load_spares(connection, book)
    load_tallies(connection, book, [tree.run_id])
    drop(book, tree, reason)
    thin(book, [book.group(tree)])


def _kept(tree: TreeRow, now_ms: int, settings: Settings) -> bool:
    """Whether somebody keeps a claim of it: it was heard of within the time after which the broker
    gives the tree to another.

    A claim that ends it was asked for by a node and not by the broker: it says nothing of how the tree grows (ADR 051).
    """
    return bool(tree.claim_node) and now_ms < tree.claim_due_ms - settings.claim_ms // 2


def _in_force(tree: TreeRow, epoch: int) -> None:
    if tree.state != GROWING:
        state = tree_pb2.TreeState.Name(tree_pb2.TreeState.ValueType(tree.state)).removeprefix(
            "TREE_STATE_"
        )
        raise Refused(
            f"tree {tree.tree_id.hex()[:12]} is {state} and grows no more", Reason.NOT_GROWING
        )
    if epoch != tree.claim_epoch:
        raise Refused(
            f"claim {epoch} of tree {tree.tree_id.hex()[:12]} is over: {tree.claim_epoch} is in force; drop the tree here",
            Reason.STALE_EPOCH,
        )


def _extend(tree: TreeRow, now_ms: int, settings: Settings) -> None:
    tree.claim_due_ms = now_ms + settings.claim_ms
    tree.growth_due_ms = tree.claim_due_ms + settings.requeue_ms
