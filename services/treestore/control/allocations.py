"""Allocations: the decisions of curricula, a row for each training group.

The first one to be stored is in force: a decision is made once, so that a group that is opened
    twice has the same trees.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control.runs import check_gateway, run_row
from services.treestore.storage import schema
from services.treestore.storage.sql import insert_ignore, rows_in

_MAX_GROUPS = 100_000
_DEFAULT_LIMIT = 10_000
_PAGE = 256
_MAX_BYTES = 8 << 20  # of an answer, but for its last row


def put(
    connection: Connection, request: rs.PutAllocationsRequest, now_ms: int
) -> rs.PutAllocationsResponse:
    """Store the allocations of ordinals that have none, and return those in force for all ordinals.

    Raises Refused for all but the newest gateway, and InvalidInput for a gap between ordinals.
    """
    check_gateway(connection, request.gateway_epoch)
    run_id = run_row(connection, request.run_id).run_id
    ordinals = _checked(request.allocations)
    _refuse_gap(connection, run_id, ordinals)
    rows: list[dict[str, object]] = [
        {
            "run_id": run_id,
            "ordinal": allocation.ordinal,
            "record": allocation.SerializeToString(),
            "gateway_epoch": request.gateway_epoch,
            "stored_ms": now_ms,
        }
        for allocation in request.allocations
    ]
    insert_ignore(connection, schema.allocations, rows)
    in_force = {
        row.ordinal: row.record
        for row in rows_in(connection, schema.allocations, "ordinal", ordinals, run_id=run_id)
    }
    return rs.PutAllocationsResponse(
        allocations=[rs.GroupAllocation.FromString(in_force[ordinal]) for ordinal in ordinals]
    )


def _checked(allocations: Sequence[rs.GroupAllocation]) -> list[int]:
    ordinals = [allocation.ordinal for allocation in allocations]
    if len(ordinals) > _MAX_GROUPS:
        raise InvalidInput(
            f"PutAllocations takes at most {_MAX_GROUPS} groups at once, got {len(ordinals)}"
        )
    if len(set(ordinals)) != len(ordinals):
        raise InvalidInput(f"PutAllocations names group {max(ordinals, key=ordinals.count)} twice")
    return ordinals


def _refuse_gap(connection: Connection, run_id: str, ordinals: Sequence[int]) -> None:
    """Raise InvalidInput for a gap: a reader that continues from an ordinal takes all before it for
    decided.
    """
    table = schema.allocations
    newest = connection.scalar(select(func.max(table.c.ordinal)).where(table.c.run_id == run_id))
    following = -1 if newest is None else newest
    for ordinal in sorted(o for o in ordinals if o > following):
        following += 1
        if ordinal != following:
            raise InvalidInput(
                f"PutAllocations names group {ordinal}, and group {following} has no allocation yet"
            )


def read(connection: Connection, request: rs.ReadAllocationsRequest) -> rs.ReadAllocationsResponse:
    """Return allocations in order of ordinal: at least one where there is one, then as many as fit
    in an answer.
    """
    answer = rs.ReadAllocationsResponse()
    limit, first, size = request.limit or _DEFAULT_LIMIT, request.first, 0
    while True:
        count = min(_PAGE, limit - len(answer.allocations))
        page = _page(connection, request.run_id, first, count)
        if not page:
            return answer
        for record in page:
            answer.allocations.append(rs.GroupAllocation.FromString(record))
            size += len(record)
            if size >= _MAX_BYTES:
                return answer
        first = answer.allocations[-1].ordinal + 1


def _page(connection: Connection, run_id: str, first: int, count: int) -> Sequence[bytes]:
    table = schema.allocations
    mine = (table.c.run_id == run_id) & (table.c.ordinal >= first)
    return connection.scalars(
        select(table.c.record).where(mine).order_by(table.c.ordinal).limit(count)
    ).all()
