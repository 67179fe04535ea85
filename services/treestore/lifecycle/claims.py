"""Claims: the right of a node to grow a tree, fenced by an epoch that only the store issues.

See docs/protocol.md, Claims.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select

from banyan.errors import NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import tree_pb2
from services.treestore.lifecycle import assignments
from services.treestore.lifecycle.transitions import drop_open, drop_redundant
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.load import load_groups, load_spares, load_tallies, load_trees
from services.treestore.unit_of_work.rows import GROWING, TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

_UNUSABLE = "UNUSABLE:"  # no node can ever grow the tree; UNABLE: and all else is about one node
_RETURN_MS = 100  # doubles with each return: a tree that no node can grow must cost little
_MAX_RETURN_MS = 5_000
_MAX_DOUBLINGS = 10


def claim(
    connection: Connection,
    tree_id: bytes,
    *,
    node: str,
    ticket: int,
    now_ms: int,
    settings: Settings,
    traceparent: str = "",
) -> int:
    """Return the next epoch of a tree.

    It is 0 if there is nothing to grow, or if `ticket` is not that of the newest assignment.
    Raises NotFound.
    """
    work, tree = _open(connection, tree_id, now_ms, settings)
    if is_exhausted(work, tree, ticket):
        _drop(connection, work, tree, Reason.NO_PROGRESS)
    epoch = grant(work, tree, node=node, ticket=ticket, traceparent=traceparent)
    flush(connection, work)
    return epoch


def load(
    connection: Connection, tree_ids: Iterable[bytes], now_ms: int, settings: Settings
) -> UnitOfWork:
    """Load trees so that they can be claimed."""
    work = UnitOfWork(now_ms, settings)
    load_trees(connection, work, tree_ids)
    return work


def is_exhausted(work: UnitOfWork, tree: TreeRow, ticket: int) -> bool:
    """Return True if this claim would be one too many, so that it drops the tree."""
    idle = tree.idle_claims >= tree.max_claims
    return _claimable(tree, ticket) and idle and not _is_kept(tree, work.now_ms, work.settings)


def grant(work: UnitOfWork, tree: TreeRow, *, node: str, ticket: int, traceparent: str) -> int:
    """Do as `claim` does, but neither drop nor write the tree."""
    if not _claimable(tree, ticket):
        return 0
    attempt = not _is_kept(tree, work.now_ms, work.settings)
    work.change(tree)
    tree.claim_epoch += 1
    tree.idle_claims += attempt
    tree.claim_node = node
    tree.claim_traceparent = tree.claim_traceparent or traceparent
    _extend(tree, work.now_ms, work.settings)
    return tree.claim_epoch


def _claimable(tree: TreeRow, ticket: int) -> bool:
    return tree.state == GROWING and ticket == tree.ticket


def renew(
    connection: Connection, tree_id: bytes, epoch: int, now_ms: int, settings: Settings
) -> None:
    """Extend a claim. Raises NotFound, or Refused if it is not in force."""
    [error] = renew_all(connection, [(tree_id, epoch)], "", now_ms, settings)
    if error is not None:
        raise error


def renew_all(
    connection: Connection,
    claims: Sequence[tuple[bytes, int]],
    run_id: str,
    now_ms: int,
    settings: Settings,
) -> list[NotFound | Refused | None]:
    """Extend the claims (tree and epoch) that are in force, of trees of `run_id` unless it is
    empty.

    Returns for each claim None, or the error. Trees are read and written together.
    """
    work = load(connection, {tree_id for tree_id, _ in claims}, now_ms, settings)
    errors: list[NotFound | Refused | None] = []
    for tree_id, epoch in claims:
        try:
            tree = _renewable(known(work, tree_id), epoch, run_id)
            _extend(work.change(tree), now_ms, settings)
            errors.append(None)
        except (NotFound, Refused) as error:
            errors.append(error)
    flush(connection, work)
    return errors


def _renewable(tree: TreeRow, epoch: int, run_id: str) -> TreeRow:
    check_owner(tree.tree_id, tree.run_id, run_id)
    _check_in_force(tree.tree_id, tree.state, tree.claim_epoch, epoch)
    if not tree.claim_node:  # a renewal that was on its way must not put off the next claim
        raise Refused(
            f"claim {epoch} of tree {tree.tree_id.hex()[:12]} was handed back; drop the tree here",
            Reason.STALE_EPOCH,
        )
    return tree


def check_in_force(connection: Connection, tree_id: bytes, epoch: int) -> None:
    """Raise NotFound, or Refused unless the claim is in force."""
    trees = schema.trees.c
    row = connection.execute(
        select(trees.state, trees.claim_epoch).where(trees.tree_id == tree_id)
    ).one_or_none()
    if row is None:
        raise _unknown(tree_id)
    _check_in_force(tree_id, row.state, row.claim_epoch, epoch)


def check_holder(connection: Connection, tree_id: bytes, node_id: str) -> None:
    """Raise Refused unless the node holds the claim of a tree. An unknown tree passes."""
    trees = schema.trees.c
    holder = connection.scalar(select(trees.claim_node).where(trees.tree_id == tree_id))
    if holder not in (None, node_id):
        raise Refused(
            f"node {node_id} holds no claim of tree {tree_id.hex()[:12]}; drop the tree there",
            Reason.NOT_ITS_CLAIM,
        )


def return_tree(
    connection: Connection,
    tree_id: bytes,
    *,
    epoch: int,
    reason: str,
    now_ms: int,
    settings: Settings,
    joined: bool = False,
) -> None:
    """End a claim without counting it as an attempt. Raises NotFound, or Refused.

    The tree is queued again, at once after a drain or the first return, later otherwise. A tree
    that is UNUSABLE is dropped, with the reason, unless a joined node says so: its word is about
    that node alone.
    """
    work, tree = _open(connection, tree_id, now_ms, settings)
    _check_in_force(tree.tree_id, tree.state, tree.claim_epoch, epoch)
    if not tree.claim_node:  # returned before; events of the node count until the next claim
        return
    work.change(tree)
    tree.idle_claims = max(0, tree.idle_claims - 1)
    tree.claim_node, tree.claim_due_ms = "", 0
    tree.returns += 1
    if reason.startswith(_UNUSABLE) and not joined:
        _drop(connection, work, tree, reason)
    elif tree.returns > settings.max_returns:
        _drop(connection, work, tree, f"RETURNED: {reason}" if reason else "RETURNED")
    elif reason == "drain" or tree.returns == 1:
        assignments.queue(work, tree, spec_of(connection, tree_id))
    else:
        delay_ms = _RETURN_MS << min(tree.returns, _MAX_DOUBLINGS)
        tree.growth_due_ms = now_ms + min(delay_ms, _MAX_RETURN_MS)
    flush(connection, work)


def check_run(connection: Connection, tree_id: bytes, run_id: str) -> None:
    """Raise Refused if the tree belongs to another run than `run_id`, that of the caller."""
    trees = schema.trees
    owner = connection.scalar(select(trees.c.run_id).where(trees.c.tree_id == tree_id))
    if owner is not None:
        check_owner(tree_id, owner, run_id)


def check_owner(tree_id: bytes, owner: str, run_id: str) -> None:
    """Raise Refused for a tree of another run than `run_id`, unless that is empty."""
    if run_id and owner != run_id:
        raise Refused(
            f"tree {tree_id.hex()[:12]} does not belong to run {run_id}", Reason.OTHER_RUN
        )


def spec_of(connection: Connection, tree_id: bytes) -> tree_pb2.TreeSpec:
    """Return the spec that a tree was opened with."""
    data = connection.scalar(select(schema.trees.c.spec).where(schema.trees.c.tree_id == tree_id))
    return tree_pb2.TreeSpec.FromString(data or b"")


def _open(
    connection: Connection, tree_id: bytes, now_ms: int, settings: Settings
) -> tuple[UnitOfWork, TreeRow]:
    work = load(connection, [tree_id], now_ms, settings)
    return work, known(work, tree_id)


def known(work: UnitOfWork, tree_id: bytes) -> TreeRow:
    """Return a loaded tree. Raises NotFound."""
    if tree_id not in work.trees:
        raise _unknown(tree_id)
    return work.trees[tree_id]


def _unknown(tree_id: bytes) -> NotFound:
    return NotFound(f"there is no tree {tree_id.hex()[:16] or 'without an id'}")


def _drop(connection: Connection, work: UnitOfWork, tree: TreeRow, reason: str) -> None:
    load_groups(connection, work, [(tree.run_id, tree.group_id)])
    load_spares(connection, work)
    load_tallies(connection, work, [tree.run_id])
    drop_open(work, tree, reason)
    drop_redundant(work, [work.group(tree)])


def _is_kept(tree: TreeRow, now_ms: int, settings: Settings) -> bool:
    """Return True if the claim was renewed so recently that the broker cannot have redelivered the
    tree yet.

    A claim that ends such a claim comes from a node and not from the broker, so it says nothing
    about how the tree grows (ADR 051).
    """
    return bool(tree.claim_node) and now_ms < tree.claim_due_ms - settings.redelivery_ms


def _check_in_force(tree_id: bytes, state: int, claim_epoch: int, epoch: int) -> None:
    """Raise Refused unless a tree in this state grows under the claim `epoch`."""
    name = f"tree {tree_id.hex()[:12]}"
    if state != GROWING:
        word = tree_pb2.TreeState.Name(tree_pb2.TreeState.ValueType(state))
        raise Refused(
            f"{name} is {word.removeprefix('TREE_STATE_')} and grows no more", Reason.NOT_GROWING
        )
    if epoch != claim_epoch:
        raise Refused(
            f"claim {epoch} of {name} is over: {claim_epoch} is in force; drop the tree here",
            Reason.STALE_EPOCH,
        )


def _extend(tree: TreeRow, now_ms: int, settings: Settings) -> None:
    tree.claim_due_ms = now_ms + settings.claim_ms
    tree.growth_due_ms = tree.claim_due_ms + settings.requeue_ms
