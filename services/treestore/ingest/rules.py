"""Rules: the disposition of each event, decided from a UnitOfWork without changing it. Pure.

See docs/protocol.md, What becomes of an event. Every event has one of six dispositions:

ACCEPT: it becomes a fact
REPEAT: it is a fact already
PARK: another fact must come first
REFUSE: a rule forbids it; it is kept in `refused`
LATE: a score that came too late; it is kept in `late`
DEAD_LETTER: it can never be right
"""

import enum
from dataclasses import dataclass

from banyan.reasons import Reason
from banyan.segment import Kind, Segment
from banyan.v1 import tree_pb2
from services.treestore.events.events import (
    Event,
    GrownPlan,
    GrownSegment,
    LeafFinished,
    LeafScored,
    TreeGrown,
    TreeOpened,
)
from services.treestore.ingest import endings
from services.treestore.unit_of_work import receipts, segment_limits
from services.treestore.unit_of_work.parked_events import run_key, segment_key, tree_key
from services.treestore.unit_of_work.rows import DROPPED, GROWING, GroupRow, ScoreRow, TreeRow
from services.treestore.unit_of_work.segment_bounds import Limits, broken_rule
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

_EPOCH_GAP = 1024  # a store that is rebuilt learns epochs from the log; a larger step is an error


class Disposition(enum.Enum):
    """The ways in which an event can end, see the module."""

    ACCEPT = "accept"
    REPEAT = "repeat"
    PARK = "park"
    REFUSE = "refuse"
    LATE = "late"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A disposition with its grounds.

    disposition: the disposition
    reason: the rule that led to it
    key: the key that a parked event waits for
    winner: the segment that has the place of a refused one
    """

    disposition: Disposition
    reason: str = ""
    key: bytes = b""
    winner: bytes = b""


ACCEPT = Ruling(disposition=Disposition.ACCEPT)
REPEAT = Ruling(disposition=Disposition.REPEAT)


def park(key: bytes) -> Ruling:
    """Return the ruling that an event waits for `key`."""
    return Ruling(disposition=Disposition.PARK, key=key)


def refuse(reason: str, winner: bytes = b"") -> Ruling:
    """Return the ruling that the rule `reason` forbids an event."""
    return Ruling(disposition=Disposition.REFUSE, reason=reason, winner=winner)


def late(reason: str) -> Ruling:
    """Return the ruling that a score came too late."""
    return Ruling(disposition=Disposition.LATE, reason=reason)


def dead_letter(reason: str) -> Ruling:
    """Return the ruling that an event can never be right."""
    return Ruling(disposition=Disposition.DEAD_LETTER, reason=reason)


def judge(work: UnitOfWork, event: Event) -> Ruling:
    """Return the ruling on an event, given all that the transaction loaded for it."""
    if isinstance(event, TreeOpened):
        return _judge_opened(work, event)
    tree = work.trees.get(event.tree_id)
    if tree is None:
        return park(tree_key(event.tree_id))
    if tree.run_id != event.run_id:
        return dead_letter(
            f"RUN_MISMATCH: {_name(tree)} belongs to run {tree.run_id}, not {event.run_id}"
        )
    match event:
        case GrownSegment():
            return _judge_segment(work, tree, event)
        case GrownPlan():
            return _check_claim(work, tree, event.message.plan.claim_epoch) or ACCEPT
        case LeafFinished():
            return _judge_leaf(work, tree, event)
        case TreeGrown():
            return _judge_grown(work, tree, event)
        case LeafScored():
            return _judge_score(work, tree, event)
    raise AssertionError(f"no rule for {type(event).__name__}")


def _name(tree: TreeRow) -> str:
    return f"tree {tree.tree_id.hex()[:12]}"


def _judge_opened(work: UnitOfWork, event: TreeOpened) -> Ruling:
    spec = event.message.spec
    if event.tree_id in work.trees:
        return REPEAT
    run = work.runs.get(event.run_id)
    if run is None:
        return park(run_key(event.run_id))
    if event.message.gateway_epoch < work.gateway_epoch:
        return refuse(Reason.STALE_EPOCH)
    if run.over:
        return refuse(Reason.RUN_OVER)
    if not spec.label and spec.row_digest in run.held_out:
        return dead_letter(
            f"HELD_OUT: row {spec.row_digest.hex()[:12]} is held out;"
            " training on it would spoil the measurement"
        )
    same_id = work.groups.get((event.run_id, spec.group_id))
    same_place = work.groups_at.get((event.run_id, spec.label, spec.group_ordinal))
    for group in (same_id, same_place):
        if group is not None and not _fits(group, spec):
            return dead_letter(
                f"GROUP_MISMATCH: group {group.group_id} was opened with another id, size,"
                " ordinal, label or purpose"
            )
    if spec.index in work.members.get((event.run_id, spec.group_id), {}):
        return dead_letter(
            f"INDEX_TAKEN: group {spec.group_id} has another tree at index {spec.index}"
        )
    return ACCEPT


def _fits(group: GroupRow, spec: tree_pb2.TreeSpec) -> bool:
    return (
        group.group_id == spec.group_id
        and group.size == spec.group_size
        and group.ordinal == spec.group_ordinal
        and group.label == spec.label
        and group.purpose == spec.purpose
    )


def _check_claim(work: UnitOfWork, tree: TreeRow, epoch: int) -> Ruling | None:
    """Return the ruling that stops an event under this claim; None if it may change the tree."""
    if tree.state == DROPPED:
        return refuse(Reason.TREE_DROPPED)
    if epoch < tree.claim_epoch or (epoch > tree.claim_epoch and tree.state != GROWING):
        return refuse(Reason.STALE_EPOCH)
    if epoch > tree.claim_epoch and not work.settings.rebuild:
        return refuse(Reason.EPOCH_UNKNOWN)  # the sender never claimed the tree
    if epoch > tree.claim_epoch + _EPOCH_GAP:
        return dead_letter(
            f"EPOCH_UNKNOWN: claim {epoch} of {_name(tree)}, whose newest is {tree.claim_epoch}"
        )
    return None


def _judge_segment(work: UnitOfWork, tree: TreeRow, event: GrownSegment) -> Ruling:
    segment = event.segment
    if segment.id in work.headers:
        return REPEAT
    stopped = _check_claim(work, tree, event.message.claim_epoch) or _check_parent(
        work, tree, event
    )
    if stopped:
        return stopped
    above = work.headers.get(segment.parent)
    broken = broken_rule(
        work.limits.get(tree.run_id, Limits()),
        work.spec_bounds.get(tree.tree_id),
        segment,
        above=above,
        prompt_tokens=tree.prompt_tokens,
        given=segment_limits.given_before(work, segment),
    ) or receipts.broken_rule(work.settings.receipt_key, tree.run_id, segment, above=above)
    broken = broken or _broken_rendering(work, tree, segment)
    if broken:
        return refuse(broken)
    winner = work.places.get((tree.tree_id, segment.parent, segment.fork, segment.ordinal))
    return refuse(Reason.ORDINAL_TAKEN, winner) if winner else ACCEPT


def _broken_rendering(work: UnitOfWork, tree: TreeRow, segment: Segment) -> str:
    """Return the rule about its tokens that an answer breaks, in a run that a node joined."""
    if segment.kind is not Kind.TOOL or tree.tree_id not in work.bridges:
        return ""
    bounds, above = work.spec_bounds[tree.tree_id], work.headers[segment.parent]
    assert bounds is not None and bounds.environment is not None
    return receipts.broken_rendering(
        segment,
        bridge=work.bridges[tree.tree_id],
        segments=work.tokens,
        room=bounds.max_new_tokens - above.answer_tokens(segment.fork),
        longest_path=bounds.environment.longest_path,
    )


def _check_parent(work: UnitOfWork, tree: TreeRow, event: GrownSegment) -> Ruling | None:
    """Return the ruling that stops a segment because of its parent; None if there is none."""
    segment = event.segment
    name = f"segment {segment.id.hex()[:12]}"
    if segment.parent in work.lost:
        return refuse(Reason.PARENT_REFUSED)
    if not segment.parent:
        return None
    parent = work.headers.get(segment.parent)
    if parent is None:
        return park(segment_key(segment.parent))
    if parent.tree_id != tree.tree_id:
        return dead_letter(f"TREE_MISMATCH: {name} continues a segment of another tree")
    if segment.fork > parent.length:
        return dead_letter(
            f"BAD_FORK: {name} forks at {segment.fork}, its parent has {parent.length} tokens"
        )
    return None


def _check_place(work: UnitOfWork, tree: TreeRow, segment: bytes, end: int) -> Ruling | None:
    """Return the ruling that stops an event at a place; None if a leaf may end or a score belong
    there.
    """
    if segment in work.lost and segment not in work.headers:
        return refuse(Reason.PARENT_REFUSED)
    header = work.headers.get(segment)
    if header is None:
        return park(segment_key(segment))
    if header.tree_id != tree.tree_id:
        return dead_letter(
            f"TREE_MISMATCH: a place of {_name(tree)} lies in a segment of another tree"
        )
    if end > header.length:
        return dead_letter(
            f"BAD_END: a place lies at {end} of segment {segment.hex()[:12]},"
            f" which has {header.length} tokens"
        )
    return None


def _judge_leaf(work: UnitOfWork, tree: TreeRow, event: LeafFinished) -> Ruling:
    row = work.part(tree.tree_id).leaves.get(event.leaf)
    if row is not None and row.finished:
        return REPEAT
    stopped = _check_claim(work, tree, event.message.claim_epoch) or _check_place(
        work, tree, event.leaf.segment, event.leaf.end
    )
    if not stopped and endings.is_false(
        work.settings.receipt_key, event, work.headers, work.places
    ):
        return refuse(Reason.ENDING_FALSE)
    return stopped or ACCEPT


def _judge_grown(work: UnitOfWork, tree: TreeRow, event: TreeGrown) -> Ruling:
    epoch = event.message.claim_epoch
    if tree.grown_epoch == epoch and tree.grown_epoch:
        return REPEAT if tree.grown_digest == event.leaves_digest() else refuse(Reason.GROWN_TWICE)
    stopped = _check_claim(work, tree, epoch)
    if stopped:
        return stopped
    for leaf in (*event.leaves, *event.inside):
        stopped = _check_place(work, tree, leaf.segment, leaf.end)
        if stopped:
            return stopped
    if endings.open_actions(event, work.headers_of.get(event.tree_id, ()), work.places):
        return refuse(Reason.ACTION_OPEN)
    return ACCEPT


def _judge_score(work: UnitOfWork, tree: TreeRow, event: LeafScored) -> Ruling:
    scored = event.message.scored
    if scored.scorer not in tree.scorers:
        return dead_letter(
            f"SCORER_UNKNOWN: {_name(tree)} asks {list(tree.scorers)}, not {scored.scorer!r}"
        )
    before = work.part(tree.tree_id).scores.get((event.leaf, scored.scorer))
    if before is not None:
        return REPEAT if before == ScoreRow.of(scored) else late(Reason.SCORED_BEFORE)
    if tree.over:  # readers of the tree must always get the same scores
        return late(Reason.TREE_DROPPED if tree.state == DROPPED else Reason.TREE_CLOSED)
    return _check_place(work, tree, event.leaf.segment, event.leaf.end) or ACCEPT
