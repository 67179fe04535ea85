"""Rollout nodes of a run, and the tokens with which they join it."""

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from banyan.errors import InvalidInput, NotFound, Refused
from banyan.reasons import Reason
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control.runs import check_gateway, run_row
from services.treestore.events import node_name
from services.treestore.storage import schema

_MAX_HOST = 255  # characters; no host has a longer name
# Made once: each watcher asks after each event, and each node reports every two seconds.
_MEMBERS = (
    select(schema.members)
    .where(schema.members.c.run_id == bindparam("run"))
    .order_by(schema.members.c.node_id)
)
_GROWN = select(schema.grown).where(schema.grown.c.run_id == bindparam("run"))
_IS_MEMBER = (schema.members.c.run_id == bindparam("run")) & (
    schema.members.c.node_id == bindparam("node")
)
_MEMBER = select(schema.members).where(_IS_MEMBER)
_DELETE_MEMBER = delete(schema.members).where(_IS_MEMBER)
_INSERT_MEMBER = insert(schema.members)
_HASH_BYTES = 32
_MOST_DECODED = 2**63 - 1  # a column holds no more
PRESENT_MS = 10_000  # five times the interval in which nodes report


def put_token(connection: Connection, request: rs.PutTokenRequest, now_ms: int) -> None:
    """Store the hash of a token. Raises Refused for an old gateway, and InvalidInput for a wrong
    hash.
    """
    check_gateway(connection, request.gateway_epoch)
    if len(request.token_hash) != _HASH_BYTES:
        raise InvalidInput(f"a token's hash has {_HASH_BYTES} bytes, not {len(request.token_hash)}")
    run_id = run_row(connection, request.run_id).run_id
    table = schema.tokens
    connection.execute(delete(table).where(table.c.token_hash == request.token_hash))
    expires = now_ms + request.valid_s * 1000
    connection.execute(
        insert(table).values(token_hash=request.token_hash, run_id=run_id, expires_ms=expires)
    )


def read_token(connection: Connection, token_hash: bytes, now_ms: int) -> str:
    """Return the run that a token opens. Raises NotFound for an unknown or expired token."""
    table = schema.tokens
    row = connection.execute(select(table).where(table.c.token_hash == token_hash)).first()
    if row is None or row.expires_ms <= now_ms:
        raise NotFound(
            "there is no such token, or it has expired; ask the run's owner for a new one"
        )
    return str(row.run_id)


def put(connection: Connection, request: rs.PutMemberRequest, now_ms: int) -> bool:
    """Store a member as seen now, or as leaving; return True if a node of this name was there and
    had not left.

    Raises InvalidInput for unusable names and counts, and Refused for the id of another node.
    """
    member = request.member
    node_name.check(member.node_id)
    if len(member.host) > _MAX_HOST:
        raise InvalidInput(
            f"host {member.host[:64]!r} has {len(member.host)} characters;"
            f" at most {_MAX_HOST} are kept"
        )
    if max(member.decoded, member.decode_slots) > _MOST_DECODED:
        raise InvalidInput(
            f"{member.node_id!r} has decoded {member.decoded} segments on {member.decode_slots}"
            f" slots; at most {_MOST_DECODED} are counted"
        )
    run_id = run_row(connection, member.run_id).run_id
    same = {"run": run_id, "node": member.node_id}
    before = connection.execute(_MEMBER, same).first()
    if before is not None and member.public_key not in ("", before.public_key):
        raise Refused(
            f"{member.node_id!r} is another node of run {run_id}; give this one another name",
            Reason.NODE_TAKEN,
        )
    connection.execute(_DELETE_MEMBER, same)
    if member.joined:
        connection.execute(
            update(schema.runs).where(schema.runs.c.run_id == run_id).values(joined=True)
        )
    connection.execute(
        _INSERT_MEMBER,
        {
            "run_id": run_id,
            "node_id": member.node_id,
            "host": member.host,
            "joined": member.joined,
            "public_key": before.public_key if before is not None else member.public_key,
            "seen_ms": 0 if request.leaving else now_ms,
            "decoded": member.decoded,
            "decode_slots": member.decode_slots,
            "policy_step": member.policy_step if member.HasField("policy_step") else None,
        },
    )
    return before is not None and before.seen_ms > 0


def read(connection: Connection, run_id: str, now_ms: int) -> rs.ReadMembersResponse:
    """Return the members of a run, by node id, with the number of trees that each grew and the
    time when it last delivered something.
    """
    grown = {row.node_id: row for row in connection.execute(_GROWN, {"run": run_id})}
    rows = connection.execute(_MEMBERS, {"run": run_id})
    return rs.ReadMembersResponse(
        members=[
            rs.Member(
                node_id=row.node_id,
                run_id=row.run_id,
                host=row.host,
                joined=row.joined,
                public_key=row.public_key,
                seen_unix_ms=row.seen_ms,
                trees=grown[row.node_id].trees if row.node_id in grown else 0,
                present=row.seen_ms > now_ms - PRESENT_MS,
                decoded=row.decoded,
                decode_slots=row.decode_slots,
                policy_step=row.policy_step,
                delivered_unix_ms=grown[row.node_id].delivered_ms if row.node_id in grown else 0,
            )
            for row in rows
        ]
    )
