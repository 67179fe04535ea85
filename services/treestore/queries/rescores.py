"""Scores that were given after the run's own: the leaves without one. Read only.

Answers go through a run's closed and consumed trees by number, a bounded part at a time.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from banyan.digest import blake, canonical
from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.queries import transcripts
from services.treestore.storage import schema
from services.treestore.storage.sql import rows_in
from services.treestore.unit_of_work.rows import CLOSED, CONSUMED

TREES = 64  # of an answer
_BYTES = 4 << 20  # of completions, after which an answer ends with its tree
Place = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Key:
    """The columns that name a scorer among rescores.

    settings: as JSON with sorted keys
    """

    scorer: str
    scorer_version: str
    settings: str

    @property
    def columns(self) -> dict[str, Any]:
        """The values of the columns."""
        return {
            "scorer": self.scorer,
            "scorer_version": self.scorer_version,
            "settings_digest": blake(self.settings.encode()),
        }


def key_of(rescorer: rs.Rescorer) -> Key:
    """Return the key of a message. Raises InvalidInput if it names no scorer of a version."""
    try:
        settings = json.loads(rescorer.settings_json or "{}")
        text = canonical(settings).decode()
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the settings of {rescorer.scorer!r} are no JSON: {error}") from None
    if not rescorer.scorer or not rescorer.version or not isinstance(settings, dict):
        raise InvalidInput(
            f"a scorer has a name, a version and an object of settings; got {rescorer.scorer!r},"
            f" {rescorer.version!r}, {text:.80}"
        )
    return Key(rescorer.scorer, rescorer.version, text)


def leaves(
    connection: Connection, request: rs.ReadLeavesToRescoreRequest
) -> rs.ReadLeavesToRescoreResponse:
    """Return leaves that a scorer has not scored again."""
    key = key_of(request.rescorer)
    response = rs.ReadLeavesToRescoreResponse(last=request.after)
    found, size = trees_after(connection, request.rescorer.run_id, request.after), 0
    for tree in found:
        known = of_key(connection, [tree.tree_id], key)
        for leaf in transcripts.of_trees(connection, [tree], ()) or ():
            if (tree.tree_id, (leaf.key.leaf.segment, leaf.key.leaf.end)) in known:
                continue
            size += len(leaf.completion)
            response.leaves.append(
                rs.LeafToRescore(
                    tree_id=tree.tree_id,
                    leaf=leaf.key.leaf,
                    completion=leaf.completion,
                    row_json=leaf.row_json,
                    turns=leaf.turns,
                )
            )
        response.last = tree.n
        if size > _BYTES:
            return response
    response.done = len(found) < TREES
    return response


def of_key(
    connection: Connection, tree_ids: Iterable[bytes], key: Key
) -> dict[tuple[bytes, Place], Row[Any]]:
    """Return the rescores of a scorer by tree and place."""
    rows = rows_in(connection, schema.rescores, "tree_id", tree_ids, **key.columns)
    return {(row.tree_id, (row.segment, row.end)): row for row in rows}


def trees_after(connection: Connection, run_id: str, after: int) -> list[Row[Any]]:
    """Return the closed and consumed trees that follow a number, as many as an answer takes."""
    trees = schema.trees
    return list(
        connection.execute(
            select(trees)
            .where(trees.c.run_id == run_id, trees.c.n > after)
            .where(trees.c.state.in_((CLOSED, CONSUMED)))
            .order_by(trees.c.n)
            .limit(TREES)
        )
    )
