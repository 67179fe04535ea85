"""Effects outside: begun once for an action, and never again (docs/protocol.md, Environments)."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row, literal, select, update

from banyan.errors import NotFound
from banyan.segment import Finish, Kind
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import claims
from services.treestore.storage import schema
from services.treestore.storage.sql import rows_in

_EFFECTS = schema.effects.c
_SEGMENTS = schema.segments.c


def begin(
    connection: Connection, request: ts.BeginEffectRequest, now_ms: int
) -> ts.BeginEffectResponse:
    """Note that an action is about to change something outside; return whether this call did.

    now_ms: time on the store's clock

    Raises NotFound if the action is not stored, or Refused if the claim is not in force.
    """
    claims.check_in_force(connection, request.tree_id, request.epoch)
    _check_stored(connection, request)
    if _row(connection, request.action) is not None:
        return ts.BeginEffectResponse(begun=False)
    row = {
        "action": request.action,
        "tree_id": request.tree_id,
        "tool": request.tool,
        "claim_epoch": request.epoch,
        "begun_ms": now_ms,
        "answer": b"",
    }
    connection.execute(schema.effects.insert(), row)
    return ts.BeginEffectResponse(begun=True)


def end(connection: Connection, request: ts.EndEffectRequest) -> ts.EndEffectResponse:
    """Keep the answer to an action whose effect was begun, unless there is one.

    Whose claim is in force does not matter: what was done outside stays done.
    Raises NotFound if no effect was begun.
    """
    row = _row(connection, request.action)
    if row is None or row.tree_id != request.tree_id:
        raise NotFound(f"no effect was begun for action {request.action.hex()[:12]}")
    values = {"receipt": request.receipt.SerializeToString(), "answer": request.text.encode()}
    connection.execute(
        update(schema.effects)
        .where(_EFFECTS.action == request.action, _EFFECTS.receipt.is_(None))
        .values(values)
    )
    return ts.EndEffectResponse()


def doubt(connection: Connection, now_ms: int) -> None:
    """Note, for all actions without an answer, that an effect may have begun which is not known.

    A copy of the database that was put back has lost what began since it was made. Only actions
    that would change something outside are ended by that.

    now_ms: time on the store's clock
    """
    answer = schema.segments.alias()
    answered = select(answer.c.id).where(
        answer.c.tree_id == _SEGMENTS.tree_id,
        answer.c.parent == _SEGMENTS.id,
        answer.c.kind == int(Kind.TOOL),
    )
    actions = select(
        _SEGMENTS.id,
        _SEGMENTS.tree_id,
        literal(""),
        _SEGMENTS.claim_epoch,
        literal(now_ms, _EFFECTS.begun_ms.type),
        literal(b"", _EFFECTS.answer.type),
    ).where(
        _SEGMENTS.finish == int(Finish.TOOL_CALL),
        ~answered.exists(),
        _SEGMENTS.id.not_in(select(_EFFECTS.action)),
    )
    names = ["action", "tree_id", "tool", "claim_epoch", "begun_ms", "answer"]
    connection.execute(schema.effects.insert().from_select(names, actions))


def turns(connection: Connection, actions: Iterable[bytes]) -> dict[bytes, ts.Turn]:
    """Return those of the actions whose effect was begun, each with its answer if there is one."""
    rows = rows_in(connection, schema.effects, "action", actions)
    return {row.action: _turn(row) for row in rows if row.tool}


def _turn(row: Row[Any]) -> ts.Turn:
    if row.receipt is None:
        return ts.Turn(action=row.action)
    receipt = tree_pb2.Receipt.FromString(row.receipt)
    return ts.Turn(action=row.action, receipt=receipt, answer=row.answer.decode())


def _check_stored(connection: Connection, request: ts.BeginEffectRequest) -> None:
    stored = connection.scalar(
        select(_SEGMENTS.id).where(
            _SEGMENTS.id == request.action, _SEGMENTS.tree_id == request.tree_id
        )
    )
    if stored is None:
        raise NotFound(
            f"action {request.action.hex()[:12]} of tree {request.tree_id.hex()[:12]} is not"
            " stored, so nothing outside may be changed for it"
        )


def _row(connection: Connection, action: bytes) -> Row[Any] | None:
    return connection.execute(select(schema.effects).where(_EFFECTS.action == action)).first()
