"""Reads what bounds the segments of a transaction: their runs' models and policies, their trees' specs."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, select

from banyan.policy import PolicyVersion
from banyan.segment import Kind
from banyan.v1 import tree_pb2
from services.treestore.events.events import Event, GrownSegment, TreeOpened
from services.treestore.storage import schema
from services.treestore.unit_of_work import segment_bounds
from services.treestore.unit_of_work.segment_bounds import Limits
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

_KEYS: BindParameter[Any] = bindparam("keys", expanding=True)
_R, _P, _T = schema.runs.c, schema.policies.c, schema.trees.c
_LIMITS = select(_R.run_id, _R.vocabulary, _R.longest_path, _R.joined, _R.tokenizer).where(
    _R.run_id.in_(_KEYS)
)
_POLICIES = select(_P.learner_epoch, _P.step, _P.digest).where(
    _P.run_id == bindparam("run"), _P.digest.in_(_KEYS)
)
_SPECS = select(_T.tree_id, _T.spec).where(_T.tree_id.in_(_KEYS))


def load(connection: Connection, book: UnitOfWork, events: Collection[Event]) -> None:
    """Limits of the runs of all events; of runs that have some, specs of the trees that grew and policies that sampled."""
    for row in connection.execute(_LIMITS, {"keys": sorted({event.run_id for event in events})}):
        book.limits[row.run_id] = Limits(
            row.vocabulary, row.longest_path, row.joined, row.tokenizer or b""
        )
    grew = [
        event
        for event in events
        if isinstance(event, GrownSegment) and _bounded(book, event.run_id)
    ]
    for run_id in {event.run_id for event in grew} if not book.settings.rebuild else ():
        digests = {
            e.segment.policy for e in grew if e.run_id == run_id and e.segment.kind is Kind.POLICY
        }
        known = connection.execute(_POLICIES, {"run": run_id, "keys": sorted(digests)})
        found = frozenset(
            PolicyVersion(row.learner_epoch, row.step, bytes(row.digest)) for row in known
        )
        book.limits[run_id] = replace(book.limits[run_id], policies=found)
    trees = sorted({event.tree_id for event in grew})
    for start in range(0, len(trees), 1000):
        for tree in connection.execute(_SPECS, {"keys": trees[start : start + 1000]}):
            book.asked[tree.tree_id] = segment_bounds.asked(tree_pb2.TreeSpec.FromString(tree.spec))
    for event in events:
        if isinstance(event, TreeOpened) and _bounded(book, event.run_id):
            book.asked.setdefault(event.tree_id, segment_bounds.asked(event.message.spec))


def _bounded(book: UnitOfWork, run_id: str) -> bool:
    return run_id in book.limits and book.limits[run_id].vocabulary > 0
