"""Policies and learner epochs: numbers that never go back (PROTOCOL 1, 5)."""

from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, select, update

from banyan.errors import InvalidInput, Refused
from banyan.reasons import Reason
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.messaging import subjects
from services.treestore.control.runs import run_row
from services.treestore.lifecycle import transitions
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work import counts
from services.treestore.unit_of_work.load import load_members
from services.treestore.unit_of_work.rows import TRAIN, GroupState
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

MOST = 500  # policies of an answer; each has its step's metrics, some kB


def take_epoch(
    connection: Connection, request: rs.TakeLearnerEpochRequest
) -> rs.TakeLearnerEpochResponse:
    """The run's next learner epoch. Policies after the checkpoint that it starts from are abandoned."""
    run = run_row(connection, request.run_id)
    table = schema.policies
    after = (table.c.run_id == run.run_id) & (table.c.step > request.checkpoint_step)
    connection.execute(update(table).where(after).values(abandoned=True))
    connection.execute(
        update(schema.runs)
        .where(schema.runs.c.run_id == run.run_id)
        .values(learner_epoch=run.learner_epoch + 1)
    )
    _note_step(connection, run.run_id)
    return rs.TakeLearnerEpochResponse(epoch=run.learner_epoch + 1, next_ordinal=run.batches)


def _note_step(connection: Connection, run_id: str) -> None:
    table = schema.policies
    newest = connection.scalar(
        select(func.max(table.c.step)).where(table.c.run_id == run_id, table.c.abandoned.is_(False))
    )
    step = -1 if newest is None else newest
    connection.execute(update(schema.runs).where(schema.runs.c.run_id == run_id).values(step=step))


def put(
    connection: Connection, request: rs.PutPolicyRequest, now_ms: int, settings: Settings
) -> None:
    """Stores a policy and announces it, unless it is a replayed one that all know. The same one again changes nothing."""
    policy, ref = request.policy, request.policy.policy
    run = run_row(connection, policy.run_id)
    if len(ref.digest) != 32:
        raise InvalidInput(
            f"policy {ref.step} of run {run.run_id} has a digest of {len(ref.digest)} bytes, not 32"
        )
    if ref.learner_epoch != run.learner_epoch:
        message = f"learner epoch {ref.learner_epoch} of run {run.run_id} is over: {run.learner_epoch} is in force; stop"
        raise Refused(message, Reason.STALE_EPOCH)
    if _repeats(connection, policy):
        return
    connection.execute(
        insert(schema.policies).values(
            run_id=run.run_id,
            learner_epoch=ref.learner_epoch,
            step=ref.step,
            digest=ref.digest,
            batch_ordinal=policy.batch_ordinal if policy.HasField("batch_ordinal") else -1,
            published=policy.SerializeToString(),
            abandoned=False,
            stored_ms=now_ms,
        )
    )
    counts.add(connection, {(run.run_id, "policies"): 1})
    _note_step(connection, run.run_id)
    book = UnitOfWork(now_ms, settings)
    _expire(connection, book, run.run_id, ref.step)
    if not request.replayed:
        msg_id = f"policy-{run.run_id}-{ref.learner_epoch}-{ref.step}"
        book.say(subjects.train(run.run_id, "policy"), msg_id, policy)
    flush(connection, book)


def _expire(connection: Connection, book: UnitOfWork, run_id: str, step: int) -> None:
    """Give up the groups that no batch may take under this policy; what still comes of them is kept as refused or late."""
    groups = schema.groups
    old = (groups.c.last_step >= 0) & (groups.c.last_step < step)
    unused = groups.c.state.in_((int(GroupState.OPEN), int(GroupState.CLOSED)))
    mine = select(groups.c.group_id).where(
        groups.c.run_id == run_id, groups.c.purpose == TRAIN, unused, old
    )
    group_ids = list(connection.scalars(mine))
    load_members(connection, book, run_id, group_ids)
    transitions.expire(book, [book.groups[(run_id, group_id)] for group_id in group_ids])


def _repeats(connection: Connection, policy: events_pb2.PolicyPublished) -> bool:
    table, ref = schema.policies, policy.policy
    at = (
        (table.c.run_id == policy.run_id)
        & (table.c.learner_epoch == ref.learner_epoch)
        & (table.c.step == ref.step)
    )
    digest = connection.scalar(select(table.c.digest).where(at))
    if digest is None:
        return False
    if digest != ref.digest:
        raise Refused(
            f"policy {ref.step} of epoch {ref.learner_epoch} is stored with digest {digest.hex()[:12]}",
            Reason.POLICY_TAKEN,
        )
    return True


def read(connection: Connection, request: rs.ReadPoliciesRequest) -> rs.ReadPoliciesResponse:
    """The policies of a run, oldest first: the next ones after a number, or the newest."""
    found = [to_wire(row) for row in connection.execute(_page(request))]
    return rs.ReadPoliciesResponse(policies=found[::-1] if request.newest else found)


def _page(request: rs.ReadPoliciesRequest) -> Select[Any]:
    """By the index on run and number: it costs what it answers, however long the run is."""
    table = schema.policies
    query = select(table).where(table.c.run_id == request.run_id, table.c.n > request.after)
    if not request.abandoned:
        query = query.where(table.c.abandoned.is_(False))
    return query.order_by(table.c.n.desc() if request.newest else table.c.n).limit(
        min(request.newest or MOST, MOST)
    )


def to_wire(row: Row[Any]) -> rs.StoredPolicy:
    """Message of a policy's row."""
    published = events_pb2.PolicyPublished.FromString(row.published)
    return rs.StoredPolicy(
        published=published, abandoned=row.abandoned, stored_unix_ms=row.stored_ms, number=row.n
    )


def of_batch(
    connection: Connection, run_id: str, ordinal: int
) -> events_pb2.PolicyPublished | None:
    """The policy that a batch made: the newest that is not abandoned, or else the newest."""
    table = schema.policies
    made = select(table.c.published).where(
        table.c.run_id == run_id, table.c.batch_ordinal == ordinal
    )
    published = connection.scalar(
        made.order_by(table.c.abandoned, table.c.learner_epoch.desc()).limit(1)
    )
    return None if published is None else events_pb2.PolicyPublished.FromString(published)
