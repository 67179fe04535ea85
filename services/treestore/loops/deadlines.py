"""Deadlines belong to the store (PROTOCOL 4): scores that never came, trees that nobody grows, events that wait in vain."""

from collections.abc import Collection
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
from banyan.tree import Leaf
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire.segments import leaf_to_wire
from services.chassis.messaging import subjects
from services.treestore.ingest.transaction import Outcome, bury_event, outcome
from services.treestore.ingest.transaction import apply as apply_events
from services.treestore.lifecycle import assignments, group_scoring, transitions
from services.treestore.lifecycle.claims import spec_of
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.storage.store_metadata import put, read_int
from services.treestore.unit_of_work import completion
from services.treestore.unit_of_work.load import OVER, load_completions, load_whole
from services.treestore.unit_of_work.rows import GROWING, SCORING, UNSCORABLE, ScoreRow, TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

_MOST = 200  # rows of one kind that one look takes on; the rest is due at the next
_LEAVES = 16  # of a message; their texts may be long
Time: TypeAlias = int | BindParameter[int]  # milliseconds
_STILL = (*OVER, rs.RUN_STATE_PAUSED)


def due(connection: Connection, now_ms: int, settings: Settings) -> bool:
    """Whether there is anything to do: a cheap look, so that an idle store writes nothing."""
    return bool(connection.scalar(_DUE, {"now": now_ms, "parked": now_ms - settings.park_ms}))


def look(connection: Connection, now_ms: int, settings: Settings) -> Outcome:
    """Does all that is due."""
    book = UnitOfWork(now_ms, settings)
    trees = schema.trees
    late, owing, idle = (
        set(connection.scalars(select(trees.c.tree_id).where(due).limit(_MOST)))
        for due in (_score_due(now_ms), _reminder_due(now_ms), _growth_due(now_ms))
    )
    load_whole(connection, book, late | owing | idle)
    load_completions(connection, book, owing - late)
    for tree_id in late:
        _late(connection, book, book.trees[tree_id])
    for tree_id in owing - late:
        remind(book, book.trees[tree_id], group_scoring.scorers(connection, tree_id))
    for tree_id in idle:
        assignments.queue(book, book.trees[tree_id], spec_of(connection, tree_id))
    transitions.settle(book)
    flush(connection, book)
    done = outcome(book)
    expire(connection, now_ms, settings)
    return done


def _score_due(now_ms: Time) -> ColumnElement[bool]:
    trees = schema.trees
    return (trees.c.state == SCORING) & (trees.c.score_due_ms <= now_ms)


def _reminder_due(now_ms: Time) -> ColumnElement[bool]:
    trees = schema.trees
    return (
        trees.c.state.in_((GROWING, SCORING))
        & (trees.c.remind_due_ms > 0)
        & (trees.c.remind_due_ms <= now_ms)
    )


def _growth_due(now_ms: Time) -> ColumnElement[bool]:
    trees, runs = schema.trees, schema.runs
    live = select(runs.c.run_id).where(runs.c.state.not_in(_STILL))
    return (trees.c.state == GROWING) & (trees.c.growth_due_ms <= now_ms) & trees.c.run_id.in_(live)


# Made once: building it costs ten times as much as running it.
_DUE = select(
    or_(
        exists().where(_score_due(bindparam("now"))),
        exists().where(_reminder_due(bindparam("now"))),
        exists().where(_growth_due(bindparam("now"))),
        exists().where(schema.parked.c.parked_ms < bindparam("parked")),
    )
)


def _late(connection: Connection, book: UnitOfWork, tree: TreeRow) -> None:
    """Gives up what is owed; scorers of whole groups have until their group, grown as a whole, had its time."""
    groups = group_scoring.scorers(connection, tree.tree_id)
    until = group_scoring.score_due(connection, tree, book.now_ms) if groups else book.now_ms
    waiting = groups if until > book.now_ms else ()
    for leaf, scorer in book.owed(tree):
        if scorer not in waiting:
            book.put_score(
                tree.tree_id, leaf, scorer, ScoreRow(UNSCORABLE, 0.0, Reason.DEADLINE, "")
            )
    if waiting:
        book.change(tree).score_due_ms = until
        tree.remind_due_ms = book.now_ms + (until - book.now_ms) // 2
    book.touched.add(tree.tree_id)


def remind(book: UnitOfWork, tree: TreeRow, groups: Collection[str]) -> None:
    """Says again which leaves ended, and for scorers of whole groups, that the tree is grown: the log may have lost it, and
    nobody else knows that scores are owed."""
    book.change(tree).remind_due_ms = 0
    part, grown = book.part(tree.tree_id), tree.state == SCORING
    alone = [scorer for scorer in tree.scorers if scorer not in groups]
    owed = completion.unscored(
        part.leaves, alone, part.scores, grown=grown, inside=book.inside(tree.tree_id)
    )
    for start in range(0, len(owed), _LEAVES):
        leaves = [_finished(book, tree, leaf) for leaf in owed[start : start + _LEAVES]]
        msg_id = f"remind-{tree.tree_id.hex()}-{start}-{book.now_ms}"
        subject = subjects.lineage(tree.run_id, "leaf")
        book.say(subject, msg_id, events_pb2.LeavesFinished(leaves=leaves), tree.traceparent)
    if grown and completion.unscored(part.leaves, tuple(groups), part.scores, grown=True):
        msg_id = f"remind-{tree.tree_id.hex()}-grown-{book.now_ms}"
        message = events_pb2.TreesGrown(trees=[_grown(book, tree)])
        book.say(subjects.lineage(tree.run_id, "grown"), msg_id, message, tree.traceparent)


def _grown(book: UnitOfWork, tree: TreeRow) -> events_pb2.TreeGrown:
    return events_pb2.TreeGrown(
        run_id=tree.run_id,
        tree_id=tree.tree_id,
        claim_epoch=tree.grown_epoch,
        leaves=[leaf_to_wire(leaf) for leaf in completion.listed(book.part(tree.tree_id).leaves)],
        node_id=tree.grown_node,
    )


def _finished(book: UnitOfWork, tree: TreeRow, leaf: Leaf) -> events_pb2.LeafFinished:
    row = book.part(tree.tree_id).leaves[leaf]
    return events_pb2.LeafFinished(
        run_id=tree.run_id,
        tree_id=tree.tree_id,
        claim_epoch=tree.claim_epoch,
        leaf=leaf_to_wire(leaf),
        reason=row.reason,
        completion=row.completion or "",
    )


def expire(connection: Connection, now_ms: int, settings: Settings) -> None:
    """Judges parked events that waited too long once more; what still waits is given up."""
    parked = schema.parked
    keys = list(
        connection.scalars(
            select(parked.c.waits_for)
            .where(parked.c.parked_ms < now_ms - settings.park_ms)
            .limit(_MOST)
        )
    )
    if not keys:
        return
    book = UnitOfWork(now_ms, settings)
    apply_events(connection, book, [], keys)
    for waits_for in keys:
        for event in book.release(waits_for):
            tree = book.trees.get(event.tree_id)
            if tree is not None and tree.over:
                book.refuse(event, 0, Reason.TREE_OVER)
            else:
                bury_event(
                    book,
                    event,
                    f"PREREQUISITE_MISSING: waited {settings.park_ms / 1000:.0f} s for {waits_for[1:].hex()[:12]}",
                )
    flush(connection, book)


def broker_lost(connection: Connection, now_ms: int) -> None:
    """The log lost its messages: every open tree is due, to be queued if nobody holds it and reminded of unscored leaves.

    Only deadlines move here; the looks that follow do the work in parts, also after a crash.
    """
    trees, runs = schema.trees, schema.runs
    live = trees.c.run_id.in_(select(runs.c.run_id).where(runs.c.state.not_in(OVER)))
    free = live & (trees.c.state == GROWING) & (trees.c.claim_due_ms <= now_ms)
    connection.execute(update(trees).where(free).values(growth_due_ms=now_ms))
    open_trees = live & trees.c.state.in_((GROWING, SCORING))
    connection.execute(update(trees).where(open_trees).values(remind_due_ms=now_ms))


def beat(connection: Connection, now_ms: int) -> None:
    """Notes that the store is alive, so that its next start knows for how long it was not."""
    put(connection, "alive_ms", now_ms)


def catch_up(connection: Connection, now_ms: int) -> int:
    """Moves all deadlines by the time that the store was down: nobody could meet them then. Milliseconds."""
    alive = read_int(connection, "alive_ms")
    gap = max(0, now_ms - alive) if alive else 0
    if gap:
        trees, runs = schema.trees, schema.runs
        for column in (
            trees.c.claim_due_ms,
            trees.c.growth_due_ms,
            trees.c.score_due_ms,
            trees.c.remind_due_ms,
        ):
            later = update(trees).where(trees.c.state.in_((GROWING, SCORING)), column > 0)
            connection.execute(later.values({column.name: column + gap}))
        connection.execute(update(schema.parked).values(parked_ms=schema.parked.c.parked_ms + gap))
        live = runs.c.state.not_in(_STILL)
        connection.execute(update(runs).where(live).values(paused_ms=runs.c.paused_ms + gap))
    beat(connection, now_ms)
    return gap
