"""Loading of the bounds of segments: their runs' models and policies, their trees' specs, the
tokens that environments gave before them, and what renders their answers again.
"""

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, func, select

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.segment import Kind, Segment
from banyan.v1 import tree_pb2
from services.chassis.renderers.stored import Bridge
from services.treestore.events.events import Event, GrownSegment, TreeOpened
from services.treestore.storage import schema
from services.treestore.storage.sql import chunks
from services.treestore.storage.tokens import path_tokens, tokenizers
from services.treestore.storage.tokens.path_tokens import SegmentTokens
from services.treestore.unit_of_work.segment_bounds import Limits, bounds_of
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

log = logging.getLogger(__name__)
_KEYS: BindParameter[Any] = bindparam("keys", expanding=True)
_RUNS, _POLICY, _TREES = schema.runs.c, schema.policies.c, schema.trees.c
_LIMITS = select(
    _RUNS.run_id, _RUNS.vocabulary, _RUNS.longest_path, _RUNS.joined, _RUNS.tokenizer
).where(_RUNS.run_id.in_(_KEYS))
_POLICIES = select(_POLICY.learner_epoch, _POLICY.step, _POLICY.digest).where(
    _POLICY.run_id == bindparam("run"), _POLICY.digest.in_(_KEYS)
)
_SPECS = select(_TREES.tree_id, _TREES.spec).where(_TREES.tree_id.in_(_KEYS))
_SPECS_AT_ONCE = 1000
_SEGMENTS = schema.segments.c
_PATH = (
    select(_SEGMENTS.id.label("end"), _SEGMENTS.parent, _SEGMENTS.kind, _SEGMENTS.length)
    .where(_SEGMENTS.id.in_(_KEYS))
    .cte("path", recursive=True)
)
# An answer continues an action at its end, and whatever stands behind an answer its whole.
_PATH = _PATH.union_all(
    select(_PATH.c.end, _SEGMENTS.parent, _SEGMENTS.kind, _SEGMENTS.length).where(
        _SEGMENTS.id == _PATH.c.parent
    )
)
_GIVEN = (
    select(_PATH.c.end, func.sum(_PATH.c.length))
    .where(_PATH.c.kind == int(Kind.TOOL))
    .group_by(_PATH.c.end)
)


def load(connection: Connection, work: UnitOfWork, events: Collection[Event]) -> None:
    """Load the limits of the events' runs; of runs with limits also the specs of the trees and the
    policies that sampled, and of trees that act the tokens that environments gave.
    """
    _load_limits(connection, work, events)
    segments = [
        event
        for event in events
        if isinstance(event, GrownSegment) and _is_bounded(work, event.run_id)
    ]
    if not work.settings.rebuild:
        _load_policies(connection, work, segments)
    for chunk in chunks(sorted({event.tree_id for event in segments}), _SPECS_AT_ONCE):
        for tree in connection.execute(_SPECS, {"keys": chunk}):
            work.spec_bounds[tree.tree_id] = bounds_of(tree_pb2.TreeSpec.FromString(tree.spec))
    for event in events:
        if isinstance(event, TreeOpened) and _is_bounded(work, event.run_id):
            work.spec_bounds.setdefault(event.tree_id, bounds_of(event.message.spec))
    _load_given(connection, work, events)
    _load_answers(connection, work, events)


def _load_limits(connection: Connection, work: UnitOfWork, events: Collection[Event]) -> None:
    for row in connection.execute(_LIMITS, {"keys": sorted({event.run_id for event in events})}):
        work.limits[row.run_id] = Limits(
            vocabulary=row.vocabulary,
            longest_path=row.longest_path,
            joined=row.joined,
            tokenizer=row.tokenizer or b"",
        )


def _load_policies(
    connection: Connection, work: UnitOfWork, segments: Collection[GrownSegment]
) -> None:
    for run_id in {event.run_id for event in segments}:
        digests = {
            event.segment.policy
            for event in segments
            if event.run_id == run_id and event.segment.kind is Kind.POLICY
        }
        rows = connection.execute(_POLICIES, {"run": run_id, "keys": sorted(digests)})
        policies = frozenset(
            PolicyVersion(row.learner_epoch, row.step, bytes(row.digest)) for row in rows
        )
        work.limits[run_id] = replace(work.limits[run_id], policies=policies)


def _is_bounded(work: UnitOfWork, run_id: str) -> bool:
    return run_id in work.limits and work.limits[run_id].vocabulary > 0


def _load_given(connection: Connection, work: UnitOfWork, events: Collection[Event]) -> None:
    """Load the sums of the stored parents of segments of trees that act."""
    stored = {
        event.segment.parent
        for event in events
        if isinstance(event, GrownSegment)
        and _acts(work, event.tree_id)
        and event.segment.parent in work.headers
    }
    work.given |= dict.fromkeys(stored, 0)
    for chunk in chunks(sorted(stored)):
        rows = connection.execute(_GIVEN, {"keys": chunk})
        work.given |= {end: int(given) for end, given in rows}


def _load_answers(connection: Connection, work: UnitOfWork, events: Collection[Event]) -> None:
    """Load the paths to answers in runs that a node joined, and what renders these."""
    grown = [event for event in events if isinstance(event, GrownSegment)]
    answers = [
        event.segment
        for event in grown
        if event.segment.kind is Kind.TOOL and _renders(work, event.run_id, event.tree_id)
    ]
    if not answers:
        return
    trees = {answer.tree_id for answer in answers}
    new = {event.segment.id: event.segment for event in grown if event.tree_id in trees}
    stored: set[bytes] = set()
    for answer in answers:
        at = answer.parent
        while at in new:
            at = new[at].parent
        stored.add(at)
    work.tokens |= path_tokens.of_paths(connection, stored - {b""})
    for key, segment in new.items():
        tokens = segment.tokens_T.astype("<i4").tobytes()
        work.tokens[key] = SegmentTokens(segment.parent, segment.fork, int(segment.kind), tokens)
    runs = {event.tree_id: event.run_id for event in grown}
    for tree_id in trees:
        work.bridges[tree_id] = _bridge(connection, work, runs[tree_id], tree_id)


def _renders(work: UnitOfWork, run_id: str, tree_id: bytes) -> bool:
    limits = work.limits.get(run_id, Limits())
    return limits.joined and bool(limits.tokenizer) and _acts(work, tree_id)


def _bridge(connection: Connection, work: UnitOfWork, run_id: str, tree_id: bytes) -> Bridge | None:
    bounds = work.spec_bounds[tree_id]
    assert bounds is not None and bounds.environment is not None
    spec = bounds.environment
    if spec.words is None:
        return None
    try:
        return tokenizers.bridge(
            connection, work.limits[run_id].tokenizer, spec.renderer, spec.words
        )
    except InvalidInput as error:
        log.warning("answers in tree %s are not taken: %s", tree_id.hex()[:12], error)
        return None


def given_before(work: UnitOfWork, segment: Segment) -> int:
    """Return the sum on the path before a segment; 0 for a tree that does not act.

    A parent that the same transaction stores has its sum from its own parent.
    """
    if not _acts(work, segment.tree_id):
        return 0
    given, at = 0, segment.parent
    while at and at not in work.given:
        header = work.headers[at]
        given += header.length if header.kind == Kind.TOOL else 0
        at = header.parent
    return given + work.given.get(at, 0)


def _acts(work: UnitOfWork, tree_id: bytes) -> bool:
    bounds = work.spec_bounds.get(tree_id)
    return bounds is not None and bounds.acts
