"""Decoding of messages of the log, with the checks that need no row.

A fact that can never be right raises InvalidInput. One bad fact among good ones in a message
becomes a problem of the message, and the good ones are kept.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from banyan import digest
from banyan.errors import InvalidInput
from banyan.plugins.filter import MOST_REPAIR
from banyan.segment import Kind, Origin, Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.wire.segments import leaf_from_wire, segment_from_wire
from banyan.wire.weights import weights_of
from services.treestore.events import node_name
from services.treestore.events.events import (
    Event,
    GrownPlan,
    GrownSegment,
    LargeSegment,
    LeafFinished,
    LeafScored,
    TreeGrown,
    TreeOpened,
)

ID_BYTES = digest.DIGEST_BYTES
MAX_PLANS = 4096  # of one claim
MAX_PLAN_BYTES = 64 * 1024  # of one plan
M = TypeVar("M", bound=Message)
Decoded = tuple[list[Event], list[str]]  # the facts, and the problems of the others


def decode(subject: str, data: bytes, sequence: int) -> Decoded:
    """Return the facts of a message, and the problems of those that can never be right."""
    parts = subject.split(".")
    kind = parts[-1]
    run = parts[1] if len(parts) == 3 else ""
    try:
        return _decode(kind, run, data, sequence)
    except InvalidInput as error:
        return [], [str(error)]


def _decode(kind: str, run: str, data: bytes, sequence: int) -> Decoded:
    match kind:
        case "opened":
            return _each(_parse(events_pb2.TreesOpened, data).trees, _opened, sequence, run)
        case "segment":
            return _segments(run, data, sequence)
        case "leaf":
            return _each(_parse(events_pb2.LeavesFinished, data).leaves, _finished, sequence, run)
        case "score":
            return _each(_parse(events_pb2.LeavesScored, data).scores, _scored, sequence, run)
        case "grown":
            return _each(_parse(events_pb2.TreesGrown, data).trees, _grown, sequence, run)
    return [restore(kind, data, sequence, run)], []


def _each(
    messages: Sequence[M], read: Callable[[M, int, str], Event], sequence: int, run_id: str
) -> Decoded:
    if not messages:
        return [], ["the message holds nothing"]
    return _collect(partial(read, message, sequence, run_id) for message in messages)


def _collect(reads: Iterable[Callable[[], Event]]) -> Decoded:
    events: list[Event] = []
    problems: list[str] = []
    for read in reads:
        try:
            events.append(read())
        except InvalidInput as error:
            problems.append(str(error))
    return events, problems


def restore(kind: str, payload: bytes, sequence: int, run_id: str) -> Event:
    """Return the fact of a payload. Raises InvalidInput if it can never be right."""
    match kind:
        case "opened":
            return _opened(_parse(events_pb2.TreeOpened, payload), sequence, run_id)
        case "segment":
            return grown_segment(_parse(events_pb2.GrownSegment, payload), sequence, run_id)
        case "plan":
            return _plan(_parse(events_pb2.GrownPlan, payload), sequence, run_id)
        case "leaf":
            return _finished(_parse(events_pb2.LeafFinished, payload), sequence, run_id)
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


def _check_ids(named_run: str, run_id: str, tree_id: bytes) -> None:
    if named_run != run_id:
        raise InvalidInput(f"a message on the subject of run {run_id!r} names run {named_run!r}")
    if len(tree_id) != ID_BYTES:
        raise InvalidInput(
            f"tree id {tree_id.hex()[:16]!r} has {len(tree_id)} bytes, not {ID_BYTES}"
        )


def _check_epoch(epoch: int, name: str) -> None:
    if epoch == 0:
        raise InvalidInput(f"{name} needs the epoch of a claim, from ClaimTree")


def _leaf(message: tree_pb2.LeafRef) -> Leaf:
    if len(message.segment) != ID_BYTES:
        raise InvalidInput(
            f"a leaf names segment {message.segment.hex()[:16]!r} of {len(message.segment)} bytes"
        )
    return leaf_from_wire(message)


def _segments(run_id: str, data: bytes, sequence: int) -> Decoded:
    message = _parse(events_pb2.SegmentsGrown, data)

    def segment(grown: events_pb2.GrownSegment) -> Event:
        _check_ids(message.run_id, run_id, grown.segment.tree_id)
        read = _large_segment if grown.blob else grown_segment
        return read(grown, sequence, run_id)

    def plan(grown: events_pb2.GrownPlan) -> Event:
        _check_ids(message.run_id, run_id, grown.tree_id)
        return _plan(grown, sequence, run_id)

    segments, segment_problems = _collect(partial(segment, grown) for grown in message.segments)
    plans, plan_problems = _collect(partial(plan, grown) for grown in message.plans)
    return segments + plans, segment_problems + plan_problems


def _large_segment(message: events_pb2.GrownSegment, sequence: int, run_id: str) -> LargeSegment:
    _check_epoch(message.claim_epoch, f"segment {message.segment.id.hex()[:12]}")
    if len(message.segment.id) != ID_BYTES or len(message.blob) != ID_BYTES:
        raise InvalidInput(f"a segment in a blob is named by ids of {ID_BYTES} bytes")
    return LargeSegment(run_id, message.segment.tree_id, sequence, message)


def _plan(message: events_pb2.GrownPlan, sequence: int, run_id: str) -> GrownPlan:
    plan = message.plan
    name = f"plan {plan.number} of tree {message.tree_id.hex()[:12]}"
    _check_epoch(plan.claim_epoch, name)
    if plan.number >= MAX_PLANS or plan.ByteSize() > MAX_PLAN_BYTES:
        raise InvalidInput(
            f"{name} has {plan.ByteSize()} bytes;"
            f" the store keeps {MAX_PLANS} plans a claim of {MAX_PLAN_BYTES} bytes at most"
        )
    return GrownPlan(run_id, message.tree_id, sequence, message)


def grown_segment(message: events_pb2.GrownSegment, sequence: int, run_id: str) -> GrownSegment:
    """Return the segment of a message. Raises InvalidInput if it can never be right."""
    segment = segment_from_wire(message.segment)
    _check_epoch(message.claim_epoch, f"segment {segment.id.hex()[:12]}")
    _check_segment(segment)
    return GrownSegment(run_id, segment.tree_id, sequence, message, segment)


def _check_segment(segment: Segment) -> None:
    name = f"segment {segment.id.hex()[:12]}"
    if (segment.kind is Kind.PROMPT) != (not segment.parent):
        parent = "a parent" if segment.parent else "no parent"
        raise InvalidInput(
            f"{name}: a PROMPT is the root and the root is a PROMPT,"
            f" here {segment.kind.name} has {parent}"
        )
    if segment.parent and len(segment.parent) != ID_BYTES:
        raise InvalidInput(
            f"{name}: its parent's id has {len(segment.parent)} bytes, not {ID_BYTES}"
        )
    if not segment.parent and (segment.fork or segment.ordinal):
        raise InvalidInput(
            f"{name}: the root has fork {segment.fork} and ordinal {segment.ordinal},"
            " both must be 0"
        )
    if segment.kind is Kind.POLICY and len(segment.policy) != ID_BYTES:
        raise InvalidInput(
            f"{name}: a POLICY segment names its policy by a digest of {ID_BYTES} bytes"
        )
    if (segment.kind is Kind.FORCED) != (segment.origin is not Origin.NONE):
        raise InvalidInput(
            f"{name}: kind {segment.kind.name} does not go with origin {segment.origin.name}"
        )


def _opened(message: events_pb2.TreeOpened, sequence: int, run_id: str) -> TreeOpened:
    spec = message.spec
    _check_ids(spec.run_id, run_id, spec.tree_id)
    name = f"tree {spec.tree_id.hex()[:12]}"
    if spec.tree_id != digest.tree_id(spec.run_id, spec.group_id, spec.row_digest, spec.index):
        raise InvalidInput(
            f"tree id {spec.tree_id.hex()[:12]} is not the digest of its run, group, row and index"
        )
    if spec.purpose not in (tree_pb2.TREE_PURPOSE_TRAIN, tree_pb2.TREE_PURPOSE_EVAL):
        raise InvalidInput(f"{name} has an unknown purpose, {spec.purpose}")
    if (spec.purpose == tree_pb2.TREE_PURPOSE_EVAL) != bool(spec.label):
        raise InvalidInput(
            f"{name}: an evaluation has a label and training has none; here {spec.label!r}"
        )
    if not 0 <= spec.index < spec.group_size:
        raise InvalidInput(f"{name} has index {spec.index} in a group of {spec.group_size}")
    if len(set(spec.scorers)) != len(spec.scorers):
        raise InvalidInput(f"{name} names a scorer twice: {list(spec.scorers)}")
    weights_of(spec)
    _check_row_digest(spec, name)
    return TreeOpened(run_id, spec.tree_id, sequence, message)


def _check_row_digest(spec: tree_pb2.TreeSpec, name: str) -> None:
    """Raise InvalidInput unless the digest is that of the row: the held-out check trusts it."""
    try:
        row_digest = digest.row_digest(json.loads(spec.row_json))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name}: its row is no JSON object: {error}") from None
    if row_digest != spec.row_digest:
        raise InvalidInput(
            f"{name}: its row digests to {row_digest.hex()[:12]}, not {spec.row_digest.hex()[:12]}"
        )


def _finished(message: events_pb2.LeafFinished, sequence: int, run_id: str) -> LeafFinished:
    _check_ids(message.run_id, run_id, message.tree_id)
    _check_epoch(message.claim_epoch, "a leaf")
    return LeafFinished(run_id, message.tree_id, sequence, message, _leaf(message.leaf))


def _grown(message: events_pb2.TreeGrown, sequence: int, run_id: str) -> TreeGrown:
    _check_ids(message.run_id, run_id, message.tree_id)
    _check_epoch(message.claim_epoch, "a grown tree")
    leaves = tuple(_leaf(leaf) for leaf in message.leaves)
    if len(set(leaves)) != len(leaves):
        raise InvalidInput(f"tree {message.tree_id.hex()[:12]} lists a leaf twice")
    node_name.check(message.node_id)
    inside = tuple(sorted({_leaf(place) for place in message.inside} - set(leaves)))
    return TreeGrown(run_id, message.tree_id, sequence, message, leaves=leaves, inside=inside)


def _scored(message: events_pb2.LeafScored, sequence: int, run_id: str) -> LeafScored:
    _check_ids(message.run_id, run_id, message.tree_id)
    scorer, score = message.scored.scorer, message.scored.score
    if score.state not in (tree_pb2.SCORE_STATE_SCORED, tree_pb2.SCORE_STATE_UNSCORABLE):
        raise InvalidInput(f"a score of {scorer!r} has an unknown state, {score.state}")
    if not math.isfinite(score.value) or not all(map(math.isfinite, score.parts.values())):
        raise InvalidInput(
            f"a score of {scorer!r} is {score.value}; a value is finite, or the leaf UNSCORABLE"
        )
    if len(score.repair.text) > MOST_REPAIR:
        raise InvalidInput(f"a repair of {scorer!r} has {len(score.repair.text)} characters")
    if score.state == tree_pb2.SCORE_STATE_UNSCORABLE and not score.reason:
        raise InvalidInput(f"{scorer!r} found a leaf UNSCORABLE without a reason")
    return LeafScored(run_id, message.tree_id, sequence, message, _leaf(message.scored.leaf))
