"""Processes that runs want, and their state: the gateway writes, the supervisor reconciles.

See docs/protocol.md, Processes of the embedded mode.
"""

from sqlalchemy import Connection, delete, insert, select

from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control.runs import check_gateway, run_row
from services.treestore.storage import schema
from services.treestore.storage.store_metadata import read_int, rise


def set_desired(connection: Connection, request: rs.SetDesiredRequest) -> bool:
    """Set the processes that a run wants; return True if that changed anything."""
    check_gateway(connection, request.gateway_epoch)
    run_id = run_row(connection, request.run_id).run_id
    table = schema.desired
    wanted = {process.service: process.count for process in request.processes if process.count}
    stored = select(table.c.service, table.c.count).where(table.c.run_id == run_id)
    if dict(connection.execute(stored).all()) == wanted:
        return False
    connection.execute(delete(table).where(table.c.run_id == run_id))
    if wanted:
        rows = [
            {"run_id": run_id, "service": service, "count": count}
            for service, count in wanted.items()
        ]
        connection.execute(insert(table), rows)
    # Processes that were given up for the old list may be tried again for the new one.
    processes = schema.processes
    connection.execute(delete(processes).where(processes.c.run_id == run_id))
    rise(connection, "desired_revision")
    return True


def desired(connection: Connection) -> rs.WatchDesiredResponse:
    """Return the processes that all runs want, with the revision of the list."""
    table = schema.desired
    rows = connection.execute(select(table).order_by(table.c.run_id, table.c.service))
    processes = [
        rs.DesiredProcess(run_id=row.run_id, service=row.service, count=row._mapping["count"])
        for row in rows
    ]
    # Revision 0 means "none" to the caller, so the first list has 1.
    return rs.WatchDesiredResponse(
        revision=read_int(connection, "desired_revision") + 1, processes=processes
    )


def report(connection: Connection, request: rs.ReportProcessRequest, now_ms: int) -> None:
    """Store the newest report of a process."""
    table = schema.processes
    key = (
        (table.c.run_id == request.run_id)
        & (table.c.service == request.service)
        & (table.c.replica == request.replica)
    )
    connection.execute(delete(table).where(key))
    connection.execute(
        insert(table).values(
            run_id=request.run_id,
            service=request.service,
            replica=request.replica,
            report=request.SerializeToString(),
            event=int(request.event),
            reported_ms=now_ms,
        )
    )
