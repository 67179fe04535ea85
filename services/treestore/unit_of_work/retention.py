"""How many rows that nobody asked for are kept: parked, refused, late and dead ones, by run and by the node of the tree.

A node's bound is an eighth of its run's, so that no node alone can fill the disk, or take the room of others (ADR 054).
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table, func, select

from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work import counts
from services.treestore.unit_of_work.unit_of_work import Values

log = logging.getLogger(__name__)
NODES = 8  # as many nodes fill a run's bound
THROWN_AWAY = "thrown_away"  # the count of rows that were not kept


@dataclass(slots=True)
class _Room:
    rows: int
    bytes: int

    def takes(self, size: int) -> bool:
        return self.rows >= 1 and self.bytes >= size

    def take(self, size: int) -> None:
        self.rows -= 1
        self.bytes -= size


def fitting(
    connection: Connection, table: Table, rows: Sequence[Values], settings: Settings
) -> list[Values]:
    """The rows that there is room for, in their order; the others are counted, and said in the log."""
    of_runs: dict[object, _Room] = {}
    of_nodes: dict[tuple[object, object], _Room] = {}
    kept: list[Values] = []
    spilt: Counter[tuple[str, str]] = Counter()
    for values in rows:
        run, node, size = values["run_id"], values["node"], int(str(values["bytes"]))
        if run not in of_runs:
            of_runs[run] = _room(connection, table, settings, NODES, run_id=run)
        if (run, node) not in of_nodes:
            of_nodes[run, node] = _room(connection, table, settings, 1, run_id=run, node=node)
        rooms = of_runs[run], of_nodes[run, node]
        if all(room.takes(size) for room in rooms):
            kept.append(values)
            for room in rooms:
                room.take(size)
        else:
            spilt[str(run), str(node)] += 1
    _note(connection, table, spilt)
    return kept


def _room(
    connection: Connection, table: Table, settings: Settings, times: int, **of: object
) -> _Room:
    """What is left of a bound; read from an index alone."""
    mine = [table.c[name] == value for name, value in of.items()]
    rows, size = connection.execute(
        select(func.count(), func.coalesce(func.sum(table.c.bytes), 0)).where(*mine)
    ).one()
    return _Room(times * settings.kept_rows - rows, times * settings.kept_bytes - int(size))


def _note(connection: Connection, table: Table, spilt: Counter[tuple[str, str]]) -> None:
    for (run, node), number in spilt.items():
        whose = f"node {node} has" if node else "nobody is known to have"
        log.warning(
            "%d %s rows of run %s are thrown away, as what %s is full",
            number,
            table.name,
            run,
            whose,
        )
        counts.add(connection, {(run, THROWN_AWAY): number})


def known_runs(connection: Connection, run_ids: Iterable[str]) -> set[str]:
    """Those of the runs that the store has."""
    table = schema.runs
    return set(
        connection.scalars(select(table.c.run_id).where(table.c.run_id.in_(sorted(set(run_ids)))))
    )
