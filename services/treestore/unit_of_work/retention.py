"""Bounds of the rows that faulty or hostile peers can cause: parked, refused, late and dead ones.

They are bounded by run and by the node that claims the tree. The bound of a node is an eighth of
its run's, so that no node alone can fill the disk or take the capacity of others (ADR 054).
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table, func, select

from services.treestore.storage import schema
from services.treestore.storage.mapping import Values
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work import counts

log = logging.getLogger(__name__)
NODES = 8  # nodes that can fill their bounds before the run's is full
THROWN_AWAY = "thrown_away"  # the count of rows that were not kept


@dataclass(slots=True)
class _Capacity:
    """Rows and bytes that may still be kept."""

    rows: int
    bytes: int

    def fits(self, size: int) -> bool:
        return self.rows >= 1 and self.bytes >= size

    def use(self, size: int) -> None:
        self.rows -= 1
        self.bytes -= size


def fitting(
    connection: Connection, table: Table, rows: Sequence[Values], settings: Settings
) -> list[Values]:
    """Return the rows that fit, in their order; count the others and log them."""
    of_runs: dict[object, _Capacity] = {}
    of_nodes: dict[tuple[object, object], _Capacity] = {}
    kept: list[Values] = []
    thrown_away: Counter[tuple[str, str]] = Counter()
    for values in rows:
        run, node, size = values["run_id"], values["node"], int(str(values["bytes"]))
        if run not in of_runs:
            of_runs[run] = _capacity(connection, table, settings, NODES, run_id=run)
        if (run, node) not in of_nodes:
            of_nodes[run, node] = _capacity(connection, table, settings, 1, run_id=run, node=node)
        capacities = of_runs[run], of_nodes[run, node]
        if all(capacity.fits(size) for capacity in capacities):
            kept.append(values)
            for capacity in capacities:
                capacity.use(size)
        else:
            thrown_away[str(run), str(node)] += 1
    _record_thrown_away(connection, table, thrown_away)
    return kept


def _capacity(
    connection: Connection, table: Table, settings: Settings, times: int, **of: object
) -> _Capacity:
    """Return the rest of a bound, `times` that of a node; an index alone answers the query."""
    same = [table.c[name] == value for name, value in of.items()]
    rows, size = connection.execute(
        select(func.count(), func.coalesce(func.sum(table.c.bytes), 0)).where(*same)
    ).one()
    return _Capacity(times * settings.kept_rows - rows, times * settings.kept_bytes - int(size))


def _record_thrown_away(
    connection: Connection, table: Table, thrown_away: Counter[tuple[str, str]]
) -> None:
    for (run, node), number in thrown_away.items():
        log.warning(
            "%d %s rows of run %s are thrown away: the bound of %s is full",
            number,
            table.name,
            run,
            f"node {node}" if node else "events without a known node",
        )
        counts.add(connection, {(run, THROWN_AWAY): number})


def known_runs(connection: Connection, run_ids: Iterable[str]) -> set[str]:
    """Return those of the runs that the store has."""
    table = schema.runs
    return set(
        connection.scalars(select(table.c.run_id).where(table.c.run_id.in_(sorted(set(run_ids)))))
    )
