"""Comparison of scores that were given after the run's own with these. Read only."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row

from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.queries import group_outcomes
from services.treestore.queries.rescores import TREES, Place, key_of, of_key, trees_after
from services.treestore.storage import schema
from services.treestore.storage.sql import rows_in
from services.treestore.unit_of_work.rows import SCORED

_RIGHT = 1.0
_SHOWN = 200  # characters of a reason


def compare(
    connection: Connection, request: rs.CompareRescoresRequest
) -> rs.CompareRescoresResponse:
    """Return counts and sums over the leaves of some trees."""
    key = key_of(request.rescorer)
    found = trees_after(connection, request.rescorer.run_id, request.after)
    trees = {tree.tree_id: tree for tree in found}
    new = of_key(connection, trees, key)
    old = _old_values(connection, trees, key.scorer)
    pairs = [(old.get(place), _value(row)) for place, row in new.items()]
    both = [(was, value) for was, value in pairs if was is not None and value is not None]
    olds = [value for value, _ in pairs if value is not None]
    news = [value for _, value in pairs if value is not None]
    return rs.CompareRescoresResponse(
        last=found[-1].n if found else request.after,
        done=len(found) < TREES,
        leaves=len(old),
        rescored=len(pairs),
        old_scored=len(olds),
        old_sum=math.fsum(olds),
        new_scored=len(news),
        new_sum=math.fsum(news),
        changed=sum((before >= _RIGHT) != (after >= _RIGHT) for before, after in both),
        compared=len(both),
        reasons=Counter(row.reason[:_SHOWN] for row in new.values() if _value(row) is None),
    )


def _old_values(
    connection: Connection, trees: Mapping[bytes, Row[Any]], scorer: str
) -> dict[tuple[bytes, Place], float | None]:
    """Return the value of each leaf: that of the run's scorer of this name, else its reward."""
    values = {
        (tree_id, place): leaf.reward
        for tree_id, of_tree in group_outcomes.leaves(connection, trees).items()
        for place, leaf in of_tree.items()
    }
    for row in rows_in(connection, schema.scores, "tree_id", trees, scorer=scorer):
        at = (row.tree_id, (row.segment, row.end))
        if at in values:
            values[at] = _value(row)
    return values


def _value(row: Row[Any]) -> float | None:
    return float(row.value) if row.state == SCORED else None
