"""Rollout nodes of a run, and the tokens by which they join it."""

from sqlalchemy import Connection, delete, func, insert, select

from banyan.errors import InvalidInput, NotFound
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore import schema
from services.treestore.runs import check_gateway, run_row


def put_token(connection: Connection, request: rs.PutTokenRequest, now_ms: int) -> None:
    """Stores a token's hash."""
    check_gateway(connection, request.gateway_epoch)
    if len(request.token_hash) != 32:
        raise InvalidInput(f"a token's hash has 32 bytes, not {len(request.token_hash)}")
    run_id = run_row(connection, request.run_id).run_id
    table = schema.tokens
    connection.execute(delete(table).where(table.c.token_hash == request.token_hash))
    expires = now_ms + request.valid_s * 1000
    connection.execute(insert(table).values(token_hash=request.token_hash, run_id=run_id, expires_ms=expires))


def read_token(connection: Connection, token_hash: bytes, now_ms: int) -> str:
    """The run that a token opens. Raises NotFound if it opens none, or none any more."""
    table = schema.tokens
    row = connection.execute(select(table).where(table.c.token_hash == token_hash)).first()
    if row is None or row.expires_ms <= now_ms:
        raise NotFound("there is no such token, or it has expired; ask the run's owner for a new one")
    return str(row.run_id)


def put(connection: Connection, member: rs.Member, now_ms: int) -> None:
    """Notes a member, and that it was heard of now."""
    run_id = run_row(connection, member.run_id).run_id
    table = schema.members
    connection.execute(delete(table).where(table.c.run_id == run_id, table.c.node_id == member.node_id))
    connection.execute(
        insert(table).values(
            run_id=run_id,
            node_id=member.node_id,
            host=member.host,
            joined=member.joined,
            public_key=member.public_key,
            seen_ms=now_ms,
        )
    )


def read(connection: Connection, run_id: str) -> rs.ReadMembersResponse:
    """The members of a run, by node id, with the trees that each grew to the end."""
    table, trees = schema.members, schema.trees
    grew = select(trees.c.grown_node, func.count()).where(trees.c.run_id == run_id).group_by(trees.c.grown_node)
    counts: dict[str, int] = dict(connection.execute(grew).all())
    rows = connection.execute(select(table).where(table.c.run_id == run_id).order_by(table.c.node_id))
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
            )
            for r in rows
        ]
    )
