"""What the log says, decoded and checked for what can be known without looking at a row.

A message that can never be right raises InvalidInput; one bad segment among good ones becomes a problem of its message.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from banyan import digest
from banyan.errors import InvalidInput
from banyan.plugins.filter import MOST_REPAIR
from banyan.segment import Kind, Origin, Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.wire.segments import leaf_from_wire, segment_from_wire
from services.treestore.events import node_name
from services.treestore.events.events import (
    Event,
    GrownPlan,
    GrownSegment,
    Large,
    LeafFinished,
    LeafScored,
    TreeGrown,
    TreeOpened,
)

ID_BYTES = digest.DIGEST_BYTES
MOST_PLANS, PLAN_BYTES = 4096, 64 * 1024  # of one claim, and of one plan
M = TypeVar("M", bound=Message)


def decode(subject: str, data: bytes, sequence: int) -> tuple[list[Event], list[str]]:
    """The facts of a message, and what is wrong with the rest of it."""
    parts = subject.split(".")
    kind, run = parts[-1], parts[1] if len(parts) == 3 else ""
    try:
        if kind == "opened":
            return _each(_parse(events_pb2.TreesOpened, data).trees, _opened, sequence, run)
        if kind == "segment":
            return _segments(run, data, sequence)
        if kind == "leaf":
            return _each(_parse(events_pb2.LeavesFinished, data).leaves, _ended, sequence, run)
        if kind == "score":
            return _each(_parse(events_pb2.LeavesScored, data).scores, _scored, sequence, run)
        if kind == "grown":
            return _each(_parse(events_pb2.TreesGrown, data).trees, _grown, sequence, run)
        return [restore(kind, data, sequence, run)], []
    except InvalidInput as error:
        return [], [str(error)]


def _each(
    messages: Sequence[M], read: Callable[[M, int, str], Event], sequence: int, run_id: str
) -> tuple[list[Event], list[str]]:
    found: list[Event] = []
    problems = [] if messages else ["the message holds nothing"]
    for message in messages:
        try:
            found.append(read(message, sequence, run_id))
        except InvalidInput as error:
            problems.append(str(error))
    return found, problems


def restore(kind: str, payload: bytes, sequence: int, run_id: str) -> Event:
    """A fact from its payload. Raises InvalidInput if it can never be right."""
    match kind:
        case "opened":
            return _opened(_parse(events_pb2.TreeOpened, payload), sequence, run_id)
        case "segment":
            return grew(run_id, _parse(events_pb2.GrownSegment, payload), sequence)
        case "plan":
            return _planned(run_id, _parse(events_pb2.GrownPlan, payload), sequence)
        case "leaf":
            return _ended(_parse(events_pb2.LeafFinished, payload), sequence, run_id)
        case "grown":
            return _grown(_parse(events_pb2.TreeGrown, payload), sequence, run_id)
        case "score":
            return _scored(_parse(events_pb2.LeafScored, payload), sequence, run_id)
    raise InvalidInput(f"no event of kind {kind!r} is known")


def _parse(cls: type[M], payload: bytes) -> M:
    message = cls()
    try:
        message.ParseFromString(payload)
    except DecodeError:
        raise InvalidInput(f"{len(payload)} bytes are not a {cls.DESCRIPTOR.full_name}") from None
    return message


def _check(said: str, run_id: str, tree_id: bytes) -> None:
    if said != run_id:
        raise InvalidInput(f"a message on the subject of run {run_id!r} speaks of run {said!r}")
    if len(tree_id) != ID_BYTES:
        raise InvalidInput(
            f"tree id {tree_id.hex()[:16]!r} has {len(tree_id)} bytes, not {ID_BYTES}"
        )


def _claimed(epoch: int, what: str) -> None:
    if epoch == 0:
        raise InvalidInput(f"{what} needs the epoch of a claim, from ClaimTree")


def _leaf(message: tree_pb2.LeafRef) -> Leaf:
    if len(message.segment) != ID_BYTES:
        raise InvalidInput(
            f"a leaf names segment {message.segment.hex()[:16]!r} of {len(message.segment)} bytes"
        )
    return leaf_from_wire(message)


def _segments(run_id: str, data: bytes, sequence: int) -> tuple[list[Event], list[str]]:
    message = _parse(events_pb2.SegmentsGrown, data)
    events: list[Event] = []
    problems: list[str] = []
    for grown in message.segments:
        try:
            _check(message.run_id, run_id, grown.segment.tree_id)
            events.append(
                _large(run_id, grown, sequence) if grown.blob else grew(run_id, grown, sequence)
            )
        except InvalidInput as error:
            problems.append(str(error))
    for plan in message.plans:
        try:
            _check(message.run_id, run_id, plan.tree_id)
            events.append(_planned(run_id, plan, sequence))
        except InvalidInput as error:
            problems.append(str(error))
    return events, problems


def _large(run_id: str, message: events_pb2.GrownSegment, sequence: int) -> Large:
    _claimed(message.claim_epoch, f"segment {message.segment.id.hex()[:12]}")
    if len(message.segment.id) != ID_BYTES or len(message.blob) != ID_BYTES:
        raise InvalidInput(f"a segment in a blob is named by ids of {ID_BYTES} bytes")
    return Large(run_id, message.segment.tree_id, sequence, message)


def _planned(run_id: str, message: events_pb2.GrownPlan, sequence: int) -> GrownPlan:
    plan = message.plan
    _claimed(plan.claim_epoch, f"plan {plan.number} of tree {message.tree_id.hex()[:12]}")
    if plan.number >= MOST_PLANS or plan.ByteSize() > PLAN_BYTES:
        raise InvalidInput(
            f"plan {plan.number} of tree {message.tree_id.hex()[:12]} has {plan.ByteSize()} bytes;"
            f" the store keeps {MOST_PLANS} plans a claim of {PLAN_BYTES} bytes at most"
        )
    return GrownPlan(run_id, message.tree_id, sequence, message)


def grew(run_id: str, message: events_pb2.GrownSegment, sequence: int) -> GrownSegment:
    """A segment under a claim, from its message. Raises InvalidInput."""
    segment = segment_from_wire(message.segment)
    _claimed(message.claim_epoch, f"segment {segment.id.hex()[:12]}")
    _sane(segment)
    return GrownSegment(run_id, segment.tree_id, sequence, message, segment)


def _sane(segment: Segment) -> None:
    name = f"segment {segment.id.hex()[:12]}"
    if (segment.kind is Kind.PROMPT) != (not segment.parent):
        raise InvalidInput(
            f"{name}: a PROMPT is the root and the root is a PROMPT, here {segment.kind.name} has {_parent(segment)}"
        )
    if segment.parent and len(segment.parent) != ID_BYTES:
        raise InvalidInput(
            f"{name}: its parent's id has {len(segment.parent)} bytes, not {ID_BYTES}"
        )
    if not segment.parent and (segment.fork or segment.ordinal):
        raise InvalidInput(
            f"{name}: the root has fork {segment.fork} and ordinal {segment.ordinal}, both must be 0"
        )
    if segment.kind is Kind.POLICY and len(segment.policy) != ID_BYTES:
        raise InvalidInput(
            f"{name}: a POLICY segment names its policy by a digest of {ID_BYTES} bytes"
        )
    if (segment.kind is Kind.FORCED) != (segment.origin is not Origin.NONE):
        raise InvalidInput(
            f"{name}: kind {segment.kind.name} does not go with origin {segment.origin.name}"
        )


def _parent(segment: Segment) -> str:
    return "a parent" if segment.parent else "no parent"


def _opened(message: events_pb2.TreeOpened, sequence: int, run_id: str) -> TreeOpened:
    spec = message.spec
    _check(spec.run_id, run_id, spec.tree_id)
    if spec.tree_id != digest.tree_id(spec.run_id, spec.group_id, spec.row_digest, spec.index):
        raise InvalidInput(
            f"tree id {spec.tree_id.hex()[:12]} is not the digest of its run, group, row and index"
        )
    if spec.purpose not in (tree_pb2.TREE_PURPOSE_TRAIN, tree_pb2.TREE_PURPOSE_EVAL):
        raise InvalidInput(
            f"tree {spec.tree_id.hex()[:12]} has purpose {spec.purpose}, which is none"
        )
    if (spec.purpose == tree_pb2.TREE_PURPOSE_EVAL) != bool(spec.label):
        raise InvalidInput(
            f"tree {spec.tree_id.hex()[:12]}: an evaluation has a label and training has none; here {spec.label!r}"
        )
    if not 0 <= spec.index < spec.group_size:
        raise InvalidInput(
            f"tree {spec.tree_id.hex()[:12]} has index {spec.index} in a group of {spec.group_size}"
        )
    if len(set(spec.scorers)) != len(spec.scorers):
        raise InvalidInput(
            f"tree {spec.tree_id.hex()[:12]} names a scorer twice: {list(spec.scorers)}"
        )
    _row(spec)
    return TreeOpened(run_id, spec.tree_id, sequence, message)


def _row(spec: tree_pb2.TreeSpec) -> None:
    """The held-out check trusts the row's digest, so the digest must be the row's."""
    try:
        found = digest.row_digest(json.loads(spec.row_json))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"tree {spec.tree_id.hex()[:12]}: its row is no JSON object: {error}"
        ) from None
    if found != spec.row_digest:
        raise InvalidInput(
            f"tree {spec.tree_id.hex()[:12]}: its row digests to {found.hex()[:12]}, not {spec.row_digest.hex()[:12]}"
        )


def _ended(message: events_pb2.LeafFinished, sequence: int, run_id: str) -> LeafFinished:
    _check(message.run_id, run_id, message.tree_id)
    _claimed(message.claim_epoch, "a leaf")
    return LeafFinished(run_id, message.tree_id, sequence, message, _leaf(message.leaf))


def _grown(message: events_pb2.TreeGrown, sequence: int, run_id: str) -> TreeGrown:
    _check(message.run_id, run_id, message.tree_id)
    _claimed(message.claim_epoch, "a grown tree")
    leaves = tuple(_leaf(leaf) for leaf in message.leaves)
    if len(set(leaves)) != len(leaves):
        raise InvalidInput(f"tree {message.tree_id.hex()[:12]} lists a leaf twice")
    node_name.check(message.node_id)
    inside = tuple(sorted({_leaf(place) for place in message.inside} - set(leaves)))
    return TreeGrown(run_id, message.tree_id, sequence, message, leaves, inside)


def _scored(message: events_pb2.LeafScored, sequence: int, run_id: str) -> LeafScored:
    _check(message.run_id, run_id, message.tree_id)
    score = message.scored.score
    if score.state not in (tree_pb2.SCORE_STATE_SCORED, tree_pb2.SCORE_STATE_UNSCORABLE):
        raise InvalidInput(
            f"a score of {message.scored.scorer!r} has state {score.state}, which is none"
        )
    if not math.isfinite(score.value) or not all(map(math.isfinite, score.parts.values())):
        raise InvalidInput(
            f"a score of {message.scored.scorer!r} is {score.value}; a value is finite, or the leaf UNSCORABLE"
        )
    if len(score.repair.text) > MOST_REPAIR:
        raise InvalidInput(
            f"a repair of {message.scored.scorer!r} has {len(score.repair.text)} characters"
        )
    if score.state == tree_pb2.SCORE_STATE_UNSCORABLE and not score.reason:
        raise InvalidInput(f"{message.scored.scorer!r} found a leaf UNSCORABLE without a reason")
    return LeafScored(run_id, message.tree_id, sequence, message, _leaf(message.scored.leaf))
