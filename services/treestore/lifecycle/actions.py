"""The way to an action: what was done and answered on its path, for the environment."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, select

from banyan.segment import Kind
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import claims
from services.treestore.storage import schema

_COLUMNS = ("id", "parent", "kind", "text", "receipt")


def read(connection: Connection, request: ts.ReadActionRequest) -> ts.ReadActionResponse:
    """Return the way to an action, empty if it is not stored.

    Raises NotFound, or Refused if the claim is not in force.
    """
    claims.check_in_force(connection, request.tree_id, request.epoch)
    segments = schema.segments.c
    rows = connection.execute(
        select(*(segments[name] for name in _COLUMNS)).where(segments.tree_id == request.tree_id)
    )
    by_id = {row.id: row for row in rows}
    if request.action not in by_id:
        return ts.ReadActionResponse()
    trees = schema.trees.c
    tree = connection.execute(
        select(trees.run_id, trees.spec).where(trees.tree_id == request.tree_id)
    ).one()
    spec = tree_pb2.TreeSpec.FromString(tree.spec)
    return ts.ReadActionResponse(
        run_id=tree.run_id,
        row_json=spec.row_json,
        generate_json=spec.generate_json,
        seed=spec.seed,
        turns=_turns(by_id, request.action),
    )


def is_there(response: ts.ReadActionResponse) -> bool:
    """Return whether the action is stored."""
    return bool(response.run_id)


def _turns(rows: Mapping[bytes, Row[Any]], action: bytes) -> list[ts.Turn]:
    """Return the actions on the path to one, in order, with their answers."""
    path: list[Row[Any]] = []
    at = action
    while at:
        path.append(rows[at])
        at = rows[at].parent
    turns = [_turn(row) for row in reversed(path) if row.kind == Kind.TOOL]
    answer = next((row for row in rows.values() if _answers(row, action)), None)
    return [*turns, _turn(answer) if answer is not None else ts.Turn(action=action)]


def _answers(row: Row[Any], action: bytes) -> bool:
    return bool(row.kind == Kind.TOOL and row.parent == action)


def _turn(answer: Row[Any]) -> ts.Turn:
    receipt = tree_pb2.Receipt.FromString(answer.receipt or b"")
    return ts.Turn(action=answer.parent, receipt=receipt, answer=answer.text)
