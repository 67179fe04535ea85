"""Writing of a UnitOfWork: one statement per table with all its rows, in an order that never meets
a key twice.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, select, update

from banyan.segment import Finish
from banyan.tree import Leaf
from services.chassis.messaging import subjects
from services.treestore.storage import schema
from services.treestore.storage.mapping import Values
from services.treestore.storage.sql import add_counts, chunks, insert_all, insert_ignore
from services.treestore.unit_of_work import counts, dead_letters, retention
from services.treestore.unit_of_work.parked_events import ParkedEvent, event_digest
from services.treestore.unit_of_work.rows import CHANGING, FIXED, GroupRow, LeafRow, TallyRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

EVENTS_RECORDED = "events_recorded"  # key in Connection.info, see Context.write
_GROUP_COLUMNS = tuple(GroupRow.__dataclass_fields__)
_GROUP_CHANGES = ("opened", "done", "dropped", "state", "reason")
_TALLY_COLUMNS = tuple(TallyRow.__dataclass_fields__)
_TALLY_CHANGES = tuple(name for name in _TALLY_COLUMNS if name not in ("run_id", "label"))
_DELETE_PARKED = delete(schema.parked).where(
    schema.parked.c.n.in_(bindparam("keys", expanding=True))
)
_DELETE_BLOBS = delete(schema.blobs).where(
    schema.blobs.c.tree_id.in_(bindparam("keys", expanding=True))
)
_UPDATE_TREE = update(schema.trees).where(schema.trees.c.tree_id == bindparam("key"))
_UPDATE_GROUP = update(schema.groups).where(
    schema.groups.c.run_id == bindparam("key_run"),
    schema.groups.c.group_id == bindparam("key_group"),
)
_UPDATE_LEAF = update(schema.leaves).where(
    schema.leaves.c.tree_id == bindparam("key_tree"),
    schema.leaves.c.segment == bindparam("key_segment"),
    schema.leaves.c.end == bindparam("key_end"),
)
_UPDATE_TALLY = update(schema.tallies).where(
    schema.tallies.c.run_id == bindparam("key_run"),
    schema.tallies.c.label == bindparam("key_label"),
)


def flush(connection: Connection, work: UnitOfWork) -> None:
    """Write all that the transaction made or changed; do not use the UnitOfWork afterwards."""
    _write_trees(connection, work)
    _write_groups(connection, work)
    insert_all(connection, schema.segments, work.new_segments)
    _write_doubts(connection, work)
    _write_leaves(connection, work)
    insert_all(connection, schema.scores, work.new_scores)
    _write_parked(connection, work)
    insert_ignore(connection, schema.plans, work.new_plans)
    for chunk in chunks(tree.tree_id for tree in work.ended):
        connection.execute(_DELETE_BLOBS, {"keys": chunk})
    for table, rows in ((schema.refused, work.new_refused), (schema.late, work.new_late)):
        insert_ignore(connection, table, retention.fitting(connection, table, rows, work.settings))
    _write_dead_letters(connection, work)
    _write_tallies(connection, work)
    _write_grown(connection, work)
    counts.add(connection, counts.of_work(work))
    work.outgoing.pack_closings()
    record_events(connection, work.outgoing.rows)


def record_events(connection: Connection, rows: Sequence[Values]) -> None:
    """Put events into the outbox, and note that on the connection for Context.write."""
    insert_all(connection, schema.outbox, rows)
    if rows:
        connection.info[EVENTS_RECORDED] = True


def _columns(row: object, names: Sequence[str]) -> Values:
    return {name: getattr(row, name) for name in names}


def _write_trees(connection: Connection, work: UnitOfWork) -> None:
    opened = {values["tree_id"] for values in work.new_trees}
    stored = (*FIXED, *CHANGING)
    new = [
        {**_columns(work.trees[values["tree_id"]], stored), **values}  # type: ignore[index]
        for values in work.new_trees
    ]
    insert_all(connection, schema.trees, new)
    changed = [
        {"key": tree_id, **_columns(work.trees[tree_id], CHANGING)}
        for tree_id in work.changed_trees
        if tree_id not in opened
    ]
    if changed:
        connection.execute(_UPDATE_TREE, changed)


def _write_groups(connection: Connection, work: UnitOfWork) -> None:
    new = [_columns(work.groups[key], _GROUP_COLUMNS) for key in sorted(work.new_groups)]
    insert_all(connection, schema.groups, new)
    changed = [
        {
            "key_run": run_id,
            "key_group": group_id,
            **_columns(work.groups[run_id, group_id], _GROUP_CHANGES),
        }
        for run_id, group_id in work.changed_groups - work.new_groups
    ]
    if changed:
        connection.execute(_UPDATE_GROUP, changed)


def _write_doubts(connection: Connection, work: UnitOfWork) -> None:
    """Note, for actions that are read from the log again, that an effect may have begun."""
    if not work.settings.rebuild:
        return
    doubts = [
        {
            "action": values["id"],
            "tree_id": values["tree_id"],
            "tool": "",
            "claim_epoch": values["claim_epoch"],
            "begun_ms": work.now_ms,
            "answer": b"",
        }
        for values in work.new_segments
        if values["finish"] == Finish.TOOL_CALL
    ]
    insert_ignore(connection, schema.effects, doubts)


def _write_leaves(connection: Connection, work: UnitOfWork) -> None:
    new = [_new_leaf(work, tree_id, leaf) for tree_id, leaf in sorted(work.new_leaves)]
    insert_all(connection, schema.leaves, new)
    without_text: list[Values] = []
    with_text: list[Values] = []
    for tree_id, leaf in work.changed_leaves - work.new_leaves:
        row = work.parts[tree_id].leaves[leaf]
        key: Values = {"key_tree": tree_id, "key_segment": leaf.segment, "key_end": leaf.end}
        if row.completion is None:
            without_text.append({**key, **_leaf_changes(row)})
        else:
            with_text.append({**key, **_leaf_changes(row), "completion": row.completion})
    for rows in (without_text, with_text):
        if rows:
            connection.execute(_UPDATE_LEAF, rows)


def _new_leaf(work: UnitOfWork, tree_id: bytes, leaf: Leaf) -> Values:
    row = work.parts[tree_id].leaves[leaf]
    place = {"tree_id": tree_id, "segment": leaf.segment, "end": leaf.end}
    return {**place, **_leaf_changes(row), "completion": row.completion or ""}


def _leaf_changes(row: LeafRow) -> Values:
    return {"finished": row.finished, "listed": row.listed, "reason": row.reason}


def _write_parked(connection: Connection, work: UnitOfWork) -> None:
    for chunk in chunks(work.parked.released_rows):
        connection.execute(_DELETE_PARKED, {"keys": chunk})
    rows = [_parked_values(work, parked) for parked in work.parked.new()]
    if not rows:
        return
    known = retention.known_runs(connection, (str(values["run_id"]) for values in rows))
    # A store that is rebuilt from the log does not know the runs yet: no bounds then (ADR 054).
    unbounded = [values for values in rows if values["run_id"] not in known]
    bounded = [values for values in rows if values["run_id"] in known]
    kept = retention.fitting(connection, schema.parked, bounded, work.settings)
    insert_ignore(connection, schema.parked, [*unbounded, *kept])


def _parked_values(work: UnitOfWork, parked: ParkedEvent) -> Values:
    event, payload = parked.event, parked.event.payload()
    return {
        "digest": event_digest(event),
        "waits_for": parked.waits_for,
        "tree_id": event.tree_id,
        "kind": event.kind,
        "payload": payload,
        "sequence": event.sequence,
        "parked_ms": work.now_ms,
        **work.owner_columns(event, len(payload)),
    }


def _write_dead_letters(connection: Connection, work: UnitOfWork) -> None:
    """Keep and publish the letters that fit; the others are not published either."""
    letters = {id(values): letter for letter, values in work.new_dead}
    rows = [values for _, values in work.new_dead]
    for values in retention.fitting(connection, schema.dead, rows, work.settings):
        letter = letters[id(values)]
        insert_ignore(connection, schema.dead, [values])
        msg_id = dead_letters.message_id(letter)
        work.outgoing.record(subjects.dead(letter.stream), msg_id, letter)


def _write_tallies(connection: Connection, work: UnitOfWork) -> None:
    for key in work.changed_tallies:
        _advance_prefix(connection, work.tallies[key])
    new = [_columns(work.tallies[key], _TALLY_COLUMNS) for key in sorted(work.new_tallies)]
    insert_all(connection, schema.tallies, new)
    changed = [
        {
            "key_run": run_id,
            "key_label": label,
            **_columns(work.tallies[run_id, label], _TALLY_CHANGES),
        }
        for run_id, label in work.changed_tallies - work.new_tallies
    ]
    if changed:
        connection.execute(_UPDATE_TALLY, changed)


def _advance_prefix(connection: Connection, tally: TallyRow) -> None:
    """Advance the prefix of complete groups: a gateway opens the ordinals from there on."""
    table = schema.groups
    if tally.prefix >= tally.groups:
        return
    same = (table.c.run_id == tally.run_id) & (table.c.label == tally.label)
    complete = select(table.c.ordinal).where(
        same, table.c.ordinal >= tally.prefix, table.c.opened == table.c.size
    )
    for ordinal in connection.scalars(complete.order_by(table.c.ordinal)):
        if ordinal != tally.prefix:
            return
        tally.prefix += 1


def _write_grown(connection: Connection, work: UnitOfWork) -> None:
    rows = [
        {"run_id": run_id, "node_id": node_id, "trees": number, "delivered_ms": work.now_ms}
        for (run_id, node_id), number in sorted(work.grown.items())
    ]
    add_counts(connection, schema.grown, rows, "trees", "delivered_ms")
