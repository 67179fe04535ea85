"""Which processes the runs want, and what became of them: the gateway writes, the supervisor reconciles (PROTOCOL 7)."""

from sqlalchemy import Connection, delete, insert, select

from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control.runs import check_gateway, run_row
from services.treestore.storage import schema
from services.treestore.storage.store_metadata import read_int, rise


def set_desired(connection: Connection, request: rs.SetDesiredRequest) -> bool:
    """Sets what a run wants; whether that changed anything."""
    check_gateway(connection, request.gateway_epoch)
    run_id = run_row(connection, request.run_id).run_id
    table = schema.desired
    wanted = {p.service: p.count for p in request.processes if p.count}
    there = select(table.c.service, table.c.count).where(table.c.run_id == run_id)
    if dict(connection.execute(there).all()) == wanted:
        return False
    connection.execute(delete(table).where(table.c.run_id == run_id))
    if wanted:
        rows = [
            {"run_id": run_id, "service": service, "count": count}
            for service, count in wanted.items()
        ]
        connection.execute(insert(table), rows)
    # What was given up for the old wish may be tried again for the new one.
    processes = schema.processes
    connection.execute(delete(processes).where(processes.c.run_id == run_id))
    rise(connection, "desired_revision")
    return True


def desired(connection: Connection) -> rs.WatchDesiredResponse:
    """What all runs want, with the revision of the list."""
    table = schema.desired
    rows = connection.execute(select(table).order_by(table.c.run_id, table.c.service))
    processes = [
        rs.DesiredProcess(run_id=r.run_id, service=r.service, count=r._mapping["count"])
        for r in rows
    ]
    # Revision 0 is the caller's "none", so the first list has 1.
    return rs.WatchDesiredResponse(
        revision=read_int(connection, "desired_revision") + 1, processes=processes
    )


def report(connection: Connection, request: rs.ReportProcessRequest, now_ms: int) -> None:
    """Keeps the newest report of a process."""
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
