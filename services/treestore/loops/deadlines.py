"""Deadlines: scores that never came, trees that no node grows, events that wait too long.

See docs/protocol.md, Deadlines. They belong to the store and its clock alone.
"""

from typing import TypeAlias

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    bindparam,
    exists,
    or_,
    select,
    update,
)

from banyan.reasons import Reason
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.ingest.dead_letters import dead_letter_event
from services.treestore.ingest.outcome import Outcome, outcome
from services.treestore.ingest.transaction import apply as apply_events
from services.treestore.lifecycle import assignments, group_scoring, transitions, unscorable
from services.treestore.lifecycle.claims import spec_of
from services.treestore.loops.reminders import remind
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.storage.store_metadata import put, read_int
from services.treestore.unit_of_work.load import load_whole
from services.treestore.unit_of_work.load_parts import load_completions
from services.treestore.unit_of_work.rows import GROWING, OVER, SCORING, TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

_BATCH = 200  # rows of one kind that one transaction takes on; the rest is due in the next
Time: TypeAlias = int | BindParameter[int]  # milliseconds
_NOT_LIVE = (*OVER, rs.RUN_STATE_PAUSED)


def is_due(connection: Connection, now_ms: int, settings: Settings) -> bool:
    """Return True if anything is due: a cheap query, so that an idle store writes nothing."""
    return bool(connection.scalar(_DUE, {"now": now_ms, "parked": now_ms - settings.park_ms}))


def reconcile(connection: Connection, now_ms: int, settings: Settings) -> Outcome:
    """Do all that is due, in parts of bounded size."""
    work = UnitOfWork(now_ms, settings)
    late = _trees(connection, _score_due(now_ms))
    unreminded = _trees(connection, _reminder_due(now_ms))
    unclaimed = _trees(connection, _growth_due(now_ms))
    load_whole(connection, work, late | unreminded | unclaimed)
    load_completions(connection, work, unreminded - late)
    for tree_id in late:
        _end_scoring(connection, work, work.trees[tree_id])
    for tree_id in unreminded - late:
        remind(work, work.trees[tree_id], group_scoring.scorers(connection, tree_id))
    for tree_id in unclaimed:
        assignments.queue(work, work.trees[tree_id], spec_of(connection, tree_id))
    transitions.close_scored(work)
    flush(connection, work)
    done = outcome(work)
    expire_parked(connection, now_ms, settings)
    return done


def _trees(connection: Connection, due: ColumnElement[bool]) -> set[bytes]:
    return set(connection.scalars(select(schema.trees.c.tree_id).where(due).limit(_BATCH)))


def _score_due(now_ms: Time) -> ColumnElement[bool]:
    trees = schema.trees.c
    return (trees.state == SCORING) & (trees.score_due_ms <= now_ms)


def _reminder_due(now_ms: Time) -> ColumnElement[bool]:
    trees = schema.trees.c
    due = (trees.remind_due_ms > 0) & (trees.remind_due_ms <= now_ms)
    return trees.state.in_((GROWING, SCORING)) & due


def _growth_due(now_ms: Time) -> ColumnElement[bool]:
    trees, runs = schema.trees.c, schema.runs.c
    live = select(runs.run_id).where(runs.state.not_in(_NOT_LIVE))
    return (trees.state == GROWING) & (trees.growth_due_ms <= now_ms) & trees.run_id.in_(live)


# Made once: building it costs ten times as much as running it.
_DUE = select(
    or_(
        exists().where(_score_due(bindparam("now"))),
        exists().where(_reminder_due(bindparam("now"))),
        exists().where(_growth_due(bindparam("now"))),
        exists().where(schema.parked.c.parked_ms < bindparam("parked")),
    )
)


def _end_scoring(connection: Connection, work: UnitOfWork, tree: TreeRow) -> None:
    """Make the leaves without a score UNSCORABLE.

    Scorers of whole groups have time until their group, grown as a whole, had its own.
    """
    groups = group_scoring.scorers(connection, tree.tree_id)
    until = group_scoring.score_due(connection, tree, work.now_ms) if groups else work.now_ms
    waiting = groups if until > work.now_ms else ()
    for leaf, scorer in work.owed(tree):
        if scorer not in waiting:
            unscorable.put(work, tree, leaf, scorer, Reason.DEADLINE)
    if waiting:
        work.change(tree).score_due_ms = until
        tree.remind_due_ms = work.now_ms + (until - work.now_ms) // 2
    work.touched.add(tree.tree_id)


def expire_parked(connection: Connection, now_ms: int, settings: Settings) -> None:
    """Judge parked events that waited too long once more; those that still wait become dead
    letters.
    """
    parked = schema.parked.c
    overdue = select(parked.waits_for).where(parked.parked_ms < now_ms - settings.park_ms)
    keys = list(connection.scalars(overdue.limit(_BATCH)))
    if not keys:
        return
    work = UnitOfWork(now_ms, settings)
    apply_events(connection, work, [], keys)
    for waits_for in keys:
        for event in work.parked.release(waits_for):
            tree = work.trees.get(event.tree_id)
            if tree is not None and tree.over:
                work.refuse(event, 0, Reason.TREE_OVER)
            else:
                waited, missing = settings.park_ms / 1000, waits_for[1:].hex()[:12]
                reason = f"PREREQUISITE_MISSING: waited {waited:.0f} s for {missing}"
                dead_letter_event(work, event, reason)
    flush(connection, work)


def log_lost(connection: Connection, now_ms: int) -> None:
    """Make every open tree due, as the log lost its messages: to be queued if unclaimed, and
    reminded of unscored leaves.

    Only deadlines move here; `reconcile` does the work in parts, also after a crash.
    """
    trees, runs = schema.trees, schema.runs
    live = trees.c.run_id.in_(select(runs.c.run_id).where(runs.c.state.not_in(OVER)))
    unclaimed = live & (trees.c.state == GROWING) & (trees.c.claim_due_ms <= now_ms)
    connection.execute(update(trees).where(unclaimed).values(growth_due_ms=now_ms))
    open_trees = live & trees.c.state.in_((GROWING, SCORING))
    connection.execute(update(trees).where(open_trees).values(remind_due_ms=now_ms))


def record_alive(connection: Connection, now_ms: int) -> None:
    """Record that the store is alive, so that its next start knows how long it was down."""
    put(connection, "alive_ms", now_ms)


def catch_up(connection: Connection, now_ms: int) -> int:
    """Move all deadlines by the time that the store was down, when they could not be met; return it
    in milliseconds.
    """
    alive = read_int(connection, "alive_ms")
    gap = max(0, now_ms - alive) if alive else 0
    if gap:
        trees, runs, parked = schema.trees, schema.runs, schema.parked
        for column in (
            trees.c.claim_due_ms,
            trees.c.growth_due_ms,
            trees.c.score_due_ms,
            trees.c.remind_due_ms,
        ):
            pending = update(trees).where(trees.c.state.in_((GROWING, SCORING)), column > 0)
            connection.execute(pending.values({column.name: column + gap}))
        connection.execute(update(parked).values(parked_ms=parked.c.parked_ms + gap))
        live = runs.c.state.not_in(_NOT_LIVE)
        connection.execute(update(runs).where(live).values(paused_ms=runs.c.paused_ms + gap))
    record_alive(connection, now_ms)
    return gap
