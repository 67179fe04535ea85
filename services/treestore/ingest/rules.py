"""What becomes of an event: pure decisions over a Book (PROTOCOL 1, 3, 4). Nothing here changes anything.

Every event has one of six ends. ACCEPT: it is a fact. REPEAT: it was one before. PARK: something must come first. REFUSE: a
rule forbids it; kept in `refused`. LATE: a score where one is. BURY: it can never be right; a dead letter.
"""

import enum
from dataclasses import dataclass

from banyan.reasons import Reason
from services.treestore.events.events import (
    Event,
    GrownPlan,
    GrownSegment,
    LeafFinished,
    LeafScored,
    TreeGrown,
    TreeOpened,
)
from services.treestore.storage.schema.columns import clean
from services.treestore.unit_of_work import segment_bounds
from services.treestore.unit_of_work.rows import DROPPED, GROWING, GroupRow, ScoreRow, TreeRow
from services.treestore.unit_of_work.segment_bounds import Limits
from services.treestore.unit_of_work.unit_of_work import UnitOfWork, run_key, segment_key, tree_key

_EPOCH_GAP = 1024  # a store that is rebuilt learns epochs from the log; further ahead is an error


class Disposition(enum.Enum):
    """What becomes of an event."""

    ACCEPT = "accept"
    REPEAT = "repeat"
    PARK = "park"
    REFUSE = "refuse"
    LATE = "late"
    BURY = "bury"


@dataclass(frozen=True, slots=True)
class Ruling:
    """An end, with the rule that led to it or the key that the event waits for."""

    end: Disposition
    reason: str = ""
    key: bytes = b""
    winner: bytes = b""


ACCEPT, REPEAT = Ruling(Disposition.ACCEPT), Ruling(Disposition.REPEAT)


def park(key: bytes) -> Ruling:
    """It waits for `key`."""
    return Ruling(Disposition.PARK, key=key)


def refuse(reason: str, winner: bytes = b"") -> Ruling:
    """The rule `reason` forbids it."""
    return Ruling(Disposition.REFUSE, reason, winner=winner)


def bury(reason: str) -> Ruling:
    """It can never be right."""
    return Ruling(Disposition.BURY, reason)


def judge(book: UnitOfWork, event: Event) -> Ruling:
    """What becomes of the event, given all that the book knows."""
    if isinstance(event, TreeOpened):
        return _opened(book, event)
    tree = book.trees.get(event.tree_id)
    if tree is None:
        return park(tree_key(event.tree_id))
    if tree.run_id != event.run_id:
        return bury(
            f"RUN_MISMATCH: tree {tree.tree_id.hex()[:12]} belongs to run {tree.run_id}, not {event.run_id}"
        )
    match event:
        case GrownSegment():
            return _grew(book, tree, event)
        case GrownPlan():
            return _claim(book, tree, event.message.plan.claim_epoch) or ACCEPT
        case LeafFinished():
            return _ended(book, tree, event)
        case TreeGrown():
            return _grown(book, tree, event)
        case LeafScored():
            return _scored(book, tree, event)
    raise AssertionError(f"no rule for {type(event).__name__}")


def _opened(book: UnitOfWork, event: TreeOpened) -> Ruling:
    spec = event.message.spec
    if event.tree_id in book.trees:
        return REPEAT
    run = book.runs.get(event.run_id)
    if run is None:
        return park(run_key(event.run_id))
    if event.message.gateway_epoch < book.gateway_epoch:
        return refuse(Reason.STALE_EPOCH)
    if run.over:
        return refuse(Reason.RUN_OVER)
    if not spec.label and spec.row_digest in run.held_out:
        return bury(
            f"HELD_OUT: row {spec.row_digest.hex()[:12]} is held out; training on it would spoil the measurement"
        )
    by_name, at_place = (
        (event.run_id, spec.group_id),
        (event.run_id, spec.label, spec.group_ordinal),
    )
    for group in (book.groups.get(by_name), book.groups_at.get(at_place)):
        if group is not None and not _fits(group, event):
            return bury(
                f"GROUP_MISMATCH: group {group.group_id} was opened with another id, size, ordinal, label or purpose"
            )
    if spec.index in book.members.get(by_name, {}):
        return bury(f"INDEX_TAKEN: group {spec.group_id} has another tree at index {spec.index}")
    return ACCEPT


def _fits(group: GroupRow, event: TreeOpened) -> bool:
    spec = event.message.spec
    asked = (spec.group_id, spec.group_size, spec.group_ordinal, spec.label, spec.purpose)
    return (group.group_id, group.size, group.ordinal, group.label, group.purpose) == asked


def _claim(book: UnitOfWork, tree: TreeRow, epoch: int) -> Ruling | None:
    """Whether an event under this claim may still change the tree; None if it may."""
    if tree.state == DROPPED:
        return refuse(Reason.TREE_DROPPED)
    if epoch < tree.claim_epoch or (epoch > tree.claim_epoch and tree.state != GROWING):
        return refuse(Reason.STALE_EPOCH)
    if epoch > tree.claim_epoch and not book.settings.rebuild:
        return refuse(Reason.EPOCH_UNKNOWN)  # whoever says it never claimed the tree
    if epoch > tree.claim_epoch + _EPOCH_GAP:
        return bury(
            f"EPOCH_UNKNOWN: claim {epoch} of tree {tree.tree_id.hex()[:12]}, whose newest is {tree.claim_epoch}"
        )
    return None


def _grew(book: UnitOfWork, tree: TreeRow, event: GrownSegment) -> Ruling:
    segment = event.segment
    if segment.id in book.heads:
        return REPEAT
    stopped = _claim(book, tree, event.message.claim_epoch)
    if stopped:
        return stopped
    if segment.parent in book.lost:
        return refuse(Reason.PARENT_REFUSED)
    if segment.parent:
        parent = book.heads.get(segment.parent)
        if parent is None:
            return park(segment_key(segment.parent))
        if parent.tree_id != tree.tree_id:
            return bury(
                f"TREE_MISMATCH: segment {segment.id.hex()[:12]} continues a segment of another tree"
            )
        if segment.fork > parent.length:
            return bury(
                f"BAD_FORK: segment {segment.id.hex()[:12]} forks at {segment.fork}, its parent has {parent.length} tokens"
            )
    above = book.heads.get(segment.parent)
    limits, spec = book.limits.get(tree.run_id, Limits()), book.asked.get(tree.tree_id)
    broken = segment_bounds.wrong(limits, spec, segment, above, tree.prompt_tokens)
    if broken:
        return refuse(broken)
    winner = book.places.get((tree.tree_id, segment.parent, segment.fork, segment.ordinal))
    return refuse(Reason.ORDINAL_TAKEN, winner) if winner else ACCEPT


def _at(book: UnitOfWork, tree: TreeRow, segment: bytes, end: int) -> Ruling | None:
    """Whether there is such a place, where a leaf may end or a score belong; None if there is."""
    if segment in book.lost and segment not in book.heads:
        return refuse(Reason.PARENT_REFUSED)
    head = book.heads.get(segment)
    if head is None:
        return park(segment_key(segment))
    if head.tree_id != tree.tree_id:
        return bury(
            f"TREE_MISMATCH: a place of tree {tree.tree_id.hex()[:12]} lies in a segment of another tree"
        )
    if end > head.length:
        return bury(
            f"BAD_END: a place lies at {end} of segment {segment.hex()[:12]}, which has {head.length} tokens"
        )
    return None


def _ended(book: UnitOfWork, tree: TreeRow, event: LeafFinished) -> Ruling:
    known = book.part(tree.tree_id).leaves.get(event.leaf)
    if known is not None and known.finished:
        return REPEAT
    stopped = _claim(book, tree, event.message.claim_epoch) or _at(
        book, tree, event.leaf.segment, event.leaf.end
    )
    return stopped or ACCEPT


def _grown(book: UnitOfWork, tree: TreeRow, event: TreeGrown) -> Ruling:
    epoch = event.message.claim_epoch
    if tree.grown_epoch == epoch and tree.grown_epoch:
        return REPEAT if tree.grown_digest == event.leaves_digest() else refuse(Reason.GROWN_TWICE)
    stopped = _claim(book, tree, epoch)
    if stopped:
        return stopped
    for leaf in (*event.leaves, *event.inside):
        stopped = _at(book, tree, leaf.segment, leaf.end)
        if stopped:
            return stopped
    return ACCEPT


def _scored(book: UnitOfWork, tree: TreeRow, event: LeafScored) -> Ruling:
    scored = event.message.scored
    if scored.scorer not in tree.scorers:
        return bury(
            f"SCORER_UNKNOWN: tree {tree.tree_id.hex()[:12]} asks {list(tree.scorers)}, not {scored.scorer!r}"
        )
    part = book.part(tree.tree_id)
    given = part.scores.get((event.leaf, scored.scorer))
    if given is not None:
        return (
            REPEAT if given == score_row(event) else Ruling(Disposition.LATE, Reason.SCORED_BEFORE)
        )
    if tree.over:  # what was read of it must not change any more
        return Ruling(
            Disposition.LATE, Reason.TREE_DROPPED if tree.state == DROPPED else Reason.TREE_CLOSED
        )
    return _at(book, tree, event.leaf.segment, event.leaf.end) or ACCEPT


def score_row(event: LeafScored) -> ScoreRow:
    """The row of a score."""
    scored = event.message.scored
    return ScoreRow(
        int(scored.score.state),
        scored.score.value,
        clean(scored.score.reason),
        clean(scored.scorer_version),
    )
