"""Rollout nodes of a run, and the tokens by which they join it."""

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from banyan.errors import InvalidInput, NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control.runs import check_gateway, run_row
from services.treestore.events import node_name
from services.treestore.storage import schema

_HOST = 255  # characters: no name of a host is longer
# Made once: each watcher asks after each event.
_MEMBERS = (
    select(schema.members)
    .where(schema.members.c.run_id == bindparam("run"))
    .order_by(schema.members.c.node_id)
)
_GREW = select(schema.grown.c.node_id, schema.grown.c.trees).where(
    schema.grown.c.run_id == bindparam("run")
)
PRESENT_MS = 10_000  # five times as long as nodes are silent


def put_token(connection: Connection, request: rs.PutTokenRequest, now_ms: int) -> None:
    """Stores a token's hash."""
    check_gateway(connection, request.gateway_epoch)
    if len(request.token_hash) != 32:
        raise InvalidInput(f"a token's hash has 32 bytes, not {len(request.token_hash)}")
    run_id = run_row(connection, request.run_id).run_id
    table = schema.tokens
    connection.execute(delete(table).where(table.c.token_hash == request.token_hash))
    expires = now_ms + request.valid_s * 1000
    connection.execute(
        insert(table).values(token_hash=request.token_hash, run_id=run_id, expires_ms=expires)
    )


def read_token(connection: Connection, token_hash: bytes, now_ms: int) -> str:
    """The run that a token opens. Raises NotFound if it opens none, or none any more."""
    table = schema.tokens
    row = connection.execute(select(table).where(table.c.token_hash == token_hash)).first()
    if row is None or row.expires_ms <= now_ms:
        raise NotFound(
            "there is no such token, or it has expired; ask the run's owner for a new one"
        )
    return str(row.run_id)


def put(connection: Connection, request: rs.PutMemberRequest, now_ms: int) -> bool:
    """Notes a member, and that it was heard of now, or that it leaves. True if a node of this name was there before and
    had not left. Raises Refused for the id of another node."""
    member, table = request.member, schema.members
    node_name.check(member.node_id)
    if len(member.host) > _HOST:
        raise InvalidInput(
            f"host {member.host[:64]!r} has {len(member.host)} characters; at most {_HOST} are kept"
        )
    run_id = run_row(connection, member.run_id).run_id
    mine = (table.c.run_id == run_id, table.c.node_id == member.node_id)
    before = connection.execute(select(table).where(*mine)).first()
    if before is not None and member.public_key not in ("", before.public_key):
        raise Refused(
            f"{member.node_id!r} is another node of run {run_id}; give this one another name",
            Reason.NODE_TAKEN,
        )
    connection.execute(delete(table).where(*mine))
    if member.joined:
        connection.execute(
            update(schema.runs).where(schema.runs.c.run_id == run_id).values(joined=True)
        )
    connection.execute(
        insert(table).values(
            run_id=run_id,
            node_id=member.node_id,
            host=member.host,
            joined=member.joined,
            public_key=before.public_key if before is not None else member.public_key,
            seen_ms=0 if request.leaving else now_ms,
        )
    )
    return before is not None and before.seen_ms > 0


def read(connection: Connection, run_id: str, now_ms: int) -> rs.ReadMembersResponse:
    """The members of a run, by node id, with the trees that each grew to the end."""
    counts: dict[str, int] = dict(connection.execute(_GREW, {"run": run_id}).all())
    rows = connection.execute(_MEMBERS, {"run": run_id})
    return rs.ReadMembersResponse(
        members=[
            rs.Member(
                node_id=r.node_id,
                run_id=r.run_id,
                host=r.host,
                joined=r.joined,
                public_key=r.public_key,
                seen_unix_ms=r.seen_ms,
                trees=counts.get(r.node_id, 0),
                present=r.seen_ms > now_ms - PRESENT_MS,
            )
            for r in rows
        ]
    )
