"""Loading of a UnitOfWork: bulk reads by key, a statement per table and not per event."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, select

from services.treestore.events.decode import restore
from services.treestore.events.events import Event, TreeOpened
from services.treestore.storage import schema
from services.treestore.storage.mapping import weights_from_text
from services.treestore.storage.sql import chunks, rows_in
from services.treestore.storage.store_metadata import read_int
from services.treestore.unit_of_work import segment_limits
from services.treestore.unit_of_work.load_parts import (
    load_insides,
    load_parts,
    load_segments,
    needs_scores,
)
from services.treestore.unit_of_work.parked_events import ParkedEvent
from services.treestore.unit_of_work.rows import (
    CHANGING,
    FIXED,
    OVER,
    GroupRow,
    RunRow,
    TallyRow,
    TreeRow,
)
from services.treestore.unit_of_work.unit_of_work import UnitOfWork, scorers_of

_KEYS: BindParameter[Any] = bindparam("keys", expanding=True)
# Made once: building a statement of many columns costs more than running it.
_TREES = select(*(schema.trees.c[name] for name in (*FIXED, *CHANGING))).where(
    schema.trees.c.tree_id.in_(_KEYS)
)
_TREES_OF_GROUPS = select(schema.trees.c.tree_id).where(
    schema.trees.c.run_id == bindparam("run"), schema.trees.c.group_id.in_(_KEYS)
)
_DIGEST = 32


def load_for(
    connection: Connection,
    work: UnitOfWork,
    events: Collection[Event],
    keys: Collection[bytes] = (),
) -> None:
    """Load all that the rules may read to judge the events.

    Each step needs the rows of those before it: parked events join the events, which name trees,
    which name runs and groups; which leaves and scores are needed depends on the trees' states.

    keys: keys whose parked events are judged, too, as are those that any of these may release
    """
    load_parked(connection, work, "waits_for", keys)  # released by the keys
    tree_ids = {event.tree_id for event in [*events, *work.parked.events()]}
    load_parked(connection, work, "tree_id", tree_ids)  # released by an event
    everything = [*events, *work.parked.events()]
    opened = [event for event in everything if isinstance(event, TreeOpened)]
    if opened:  # which alone come from a gateway
        work.gateway_epoch = read_int(connection, "gateway_epoch")
    load_trees(connection, work, {event.tree_id for event in everything})
    load_runs(connection, work, {event.run_id for event in opened})
    _load_siblings(connection, work, opened)
    load_groups(connection, work, _groups_of(work))
    load_spares(connection, work)
    load_tallies(connection, work, {event.run_id for event in everything})
    load_segments(connection, work, everything)
    scored = {event.tree_id for event in everything if needs_scores(work, event)}
    load_parts(connection, work, scored)
    load_insides(connection, work, everything)
    segment_limits.load(connection, work, everything)


def load_whole(connection: Connection, work: UnitOfWork, tree_ids: Collection[bytes]) -> None:
    """Load trees with their groups, sums, leaves and scores, so that they can end."""
    load_trees(connection, work, tree_ids)
    load_groups(connection, work, _groups_of(work))
    load_spares(connection, work)
    load_tallies(connection, work, {tree.run_id for tree in work.trees.values()})
    load_parts(connection, work, tree_ids)
    load_insides(connection, work)


def load_members(
    connection: Connection, work: UnitOfWork, run_id: str, group_ids: Collection[str]
) -> None:
    """Load groups with all their trees and sums, so that they can be dropped; a group may have no
    tree yet.
    """
    load_groups(connection, work, {(run_id, group_id) for group_id in group_ids})
    load_tallies(connection, work, [run_id])
    load_trees(connection, work, trees_of_groups(connection, run_id, group_ids))


def trees_of_groups(
    connection: Connection, run_id: str, group_ids: Iterable[str]
) -> Iterator[bytes]:
    """Yield the ids of the trees of groups."""
    for chunk in chunks(sorted(group_ids)):
        yield from connection.scalars(_TREES_OF_GROUPS, {"run": run_id, "keys": chunk})


def _load_siblings(
    connection: Connection, work: UnitOfWork, opened: Collection[TreeOpened]
) -> None:
    """Load the groups and trees at the places that opened trees want."""
    for run_id in {event.run_id for event in opened}:
        specs = [event.message.spec for event in opened if event.run_id == run_id]
        ordinals = {spec.group_ordinal for spec in specs}
        for row in rows_in(connection, schema.groups, "ordinal", ordinals, run_id=run_id):
            _add_group(work, row)
        group_ids = {spec.group_id for spec in specs}
        load_groups(connection, work, {(run_id, group_id) for group_id in group_ids})
        _load_missing_trees(connection, work, run_id, group_ids)


def load_spares(connection: Connection, work: UnitOfWork) -> None:
    """Load all trees of groups with spare trees: one that closes may make others redundant."""
    for run_id in {group.run_id for group in work.groups.values() if group.take}:
        group_ids = {
            group.group_id
            for group in work.groups.values()
            if group.take and group.run_id == run_id
        }
        _load_missing_trees(connection, work, run_id, group_ids)


def _load_missing_trees(
    connection: Connection, work: UnitOfWork, run_id: str, group_ids: Collection[str]
) -> None:
    members = set(trees_of_groups(connection, run_id, group_ids))
    load_trees(connection, work, members - set(work.trees))


def load_parked(
    connection: Connection, work: UnitOfWork, column: str, values: Collection[bytes]
) -> None:
    """Load the parked events whose `column` is one of the values."""
    for row in rows_in(connection, schema.parked, column, values):
        event = restore(row.kind, row.payload, row.sequence, row.run_id)
        work.parked.add(ParkedEvent(event, row.waits_for, row.n))


def load_runs(connection: Connection, work: UnitOfWork, run_ids: Iterable[str]) -> None:
    """Load runs, with their held-out examples."""
    for row in rows_in(connection, schema.runs, "run_id", run_ids):
        work.runs[row.run_id] = RunRow(
            run_id=row.run_id,
            over=row.state in OVER,
            held_out=frozenset(digests_of(row.held_out)),
            step=row.step,
        )


def digests_of(data: bytes) -> list[bytes]:
    """Return the digests that a column holds one after the other."""
    return [data[start : start + _DIGEST] for start in range(0, len(data), _DIGEST)]


def load_trees(connection: Connection, work: UnitOfWork, tree_ids: Iterable[bytes]) -> None:
    """Load trees without their specs."""
    for chunk in chunks(sorted(set(tree_ids))):
        for row in connection.execute(_TREES, {"keys": chunk}):
            values = row._asdict()
            values["scorers"] = scorers_of(row.scorers)
            values["scorer_weights"] = weights_from_text(row.scorer_weights)
            work.add_tree(TreeRow(**values))
            work.stored_states[row.tree_id] = row.state


def load_groups(connection: Connection, work: UnitOfWork, keys: Iterable[tuple[str, str]]) -> None:
    """Load groups by run and group id."""
    by_run: dict[str, set[str]] = {}
    for run_id, group_id in keys:
        by_run.setdefault(run_id, set()).add(group_id)
    for run_id, group_ids in by_run.items():
        for row in rows_in(connection, schema.groups, "group_id", group_ids, run_id=run_id):
            _add_group(work, row)


def _add_group(work: UnitOfWork, row: Row[Any]) -> None:
    names = GroupRow.__dataclass_fields__
    work.add_group(GroupRow(**{name: getattr(row, name) for name in names}))


def _groups_of(work: UnitOfWork) -> set[tuple[str, str]]:
    return {(tree.run_id, tree.group_id) for tree in work.trees.values()}


def load_tallies(connection: Connection, work: UnitOfWork, run_ids: Iterable[str]) -> None:
    """Load the sums of runs."""
    for row in rows_in(connection, schema.tallies, "run_id", run_ids):
        work.tallies[(row.run_id, row.label)] = TallyRow(**row._asdict())
