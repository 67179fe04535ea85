"""Loading of the bounds of segments: their runs' models and policies, their trees' specs."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, select

from banyan.policy import PolicyVersion
from banyan.segment import Kind
from banyan.v1 import tree_pb2
from services.treestore.events.events import Event, GrownSegment, TreeOpened
from services.treestore.storage import schema
from services.treestore.storage.sql import chunks
from services.treestore.unit_of_work.segment_bounds import Limits, bounds_of
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

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


def load(connection: Connection, work: UnitOfWork, events: Collection[Event]) -> None:
    """Load the limits of the events' runs; of runs with limits also the specs of the trees and the
    policies that sampled.
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
