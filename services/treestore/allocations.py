"""What curricula decided, a row for each training group. The first to be stored holds: a decision is made once, whoever
asks again, so that a group that is opened twice has the same trees.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore import schema
from services.treestore.flush import insert_ignore
from services.treestore.loading import rows_in
from services.treestore.runs import check_gateway, run_row

_MOST = 100_000
_DEFAULT_LIMIT = 10_000


def put(connection: Connection, request: rs.PutAllocationsRequest, now_ms: int) -> rs.PutAllocationsResponse:
    """Stores those of ordinals that have none; what holds for all. Refuses all but the newest gateway."""
    check_gateway(connection, request.gateway_epoch)
    run_id = run_row(connection, request.run_id).run_id
    ordinals = _checked(request.allocations)
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
    held = {row.ordinal: row.record for row in rows_in(connection, schema.allocations, "ordinal", ordinals, run_id=run_id)}
    return rs.PutAllocationsResponse(allocations=[rs.GroupAllocation.FromString(held[ordinal]) for ordinal in ordinals])


def _checked(allocations: Sequence[rs.GroupAllocation]) -> list[int]:
    ordinals = [allocation.ordinal for allocation in allocations]
    if len(ordinals) > _MOST:
        raise InvalidInput(f"PutAllocations takes at most {_MOST} groups at once, got {len(ordinals)}")
    if len(set(ordinals)) != len(ordinals):
        raise InvalidInput(f"PutAllocations names group {max(ordinals, key=ordinals.count)} twice")
    return ordinals


def read(connection: Connection, request: rs.ReadAllocationsRequest) -> rs.ReadAllocationsResponse:
    """Allocations in order of ordinal."""
    table = schema.allocations
    mine = (table.c.run_id == request.run_id) & (table.c.ordinal >= request.first)
    records = select(table.c.record).where(mine).order_by(table.c.ordinal).limit(request.limit or _DEFAULT_LIMIT)
    found = [rs.GroupAllocation.FromString(record) for record in connection.scalars(records)]
    return rs.ReadAllocationsResponse(allocations=found)
