"""Policies and learner epochs: numbers that never decrease.

See docs/protocol.md, Policies and Epochs of learners and gateways.
"""

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

MAX_POLICIES = 500  # in one answer; each has its step's metrics, some kB
_DIGEST_BYTES = 32


def take_epoch(
    connection: Connection, request: rs.TakeLearnerEpochRequest
) -> rs.TakeLearnerEpochResponse:
    """Return the run's next learner epoch; policies after the checkpoint that it starts from are
    abandoned.
    """
    run = run_row(connection, request.run_id)
    policies, runs = schema.policies, schema.runs
    later = (policies.c.run_id == run.run_id) & (policies.c.step > request.checkpoint_step)
    connection.execute(update(policies).where(later).values(abandoned=True))
    epoch = run.learner_epoch + 1
    connection.execute(update(runs).where(runs.c.run_id == run.run_id).values(learner_epoch=epoch))
    _update_step(connection, run.run_id)
    return rs.TakeLearnerEpochResponse(epoch=epoch, next_ordinal=run.batches)


def _update_step(connection: Connection, run_id: str) -> None:
    """Set the step of a run to that of its newest policy that is not abandoned."""
    table = schema.policies
    newest = connection.scalar(
        select(func.max(table.c.step)).where(table.c.run_id == run_id, table.c.abandoned.is_(False))
    )
    step = -1 if newest is None else newest
    connection.execute(update(schema.runs).where(schema.runs.c.run_id == run_id).values(step=step))


def put(
    connection: Connection, request: rs.PutPolicyRequest, now_ms: int, settings: Settings
) -> None:
    """Store a policy and publish it, unless it is a replayed one that is known; a repetition
    changes nothing.

    Raises InvalidInput, or Refused for an old epoch or another policy of the same step.
    """
    policy, ref = request.policy, request.policy.policy
    run = run_row(connection, policy.run_id)
    if len(ref.digest) != _DIGEST_BYTES:
        raise InvalidInput(
            f"policy {ref.step} of run {run.run_id} has a digest of {len(ref.digest)} bytes,"
            f" not {_DIGEST_BYTES}"
        )
    if ref.learner_epoch != run.learner_epoch:
        raise Refused(
            f"learner epoch {ref.learner_epoch} of run {run.run_id} is over:"
            f" {run.learner_epoch} is in force; stop",
            Reason.STALE_EPOCH,
        )
    if _is_repeated(connection, policy):
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
    _update_step(connection, run.run_id)
    work = UnitOfWork(now_ms, settings)
    _drop_stale_groups(connection, work, run.run_id, ref.step)
    if not request.replayed:
        msg_id = f"policy-{run.run_id}-{ref.learner_epoch}-{ref.step}"
        work.outgoing.record(subjects.train(run.run_id, "policy"), msg_id, policy)
    flush(connection, work)


def _drop_stale_groups(connection: Connection, work: UnitOfWork, run_id: str, step: int) -> None:
    """Drop the groups that no batch may take after this policy; their later events are refused or
    late.
    """
    groups = schema.groups.c
    unused = groups.state.in_((int(GroupState.OPEN), int(GroupState.CLOSED)))
    stale = select(groups.group_id).where(
        groups.run_id == run_id,
        groups.purpose == TRAIN,
        unused,
        groups.last_step >= 0,
        groups.last_step < step,
    )
    group_ids = list(connection.scalars(stale))
    load_members(connection, work, run_id, group_ids)
    groups_of_run = [work.groups[(run_id, group_id)] for group_id in group_ids]
    transitions.drop_stale_groups(work, groups_of_run)


def _is_repeated(connection: Connection, policy: events_pb2.PolicyPublished) -> bool:
    """Return True if the policy is stored. Raises Refused if another one has its place."""
    table, ref = schema.policies, policy.policy
    place = (
        (table.c.run_id == policy.run_id)
        & (table.c.learner_epoch == ref.learner_epoch)
        & (table.c.step == ref.step)
    )
    digest = connection.scalar(select(table.c.digest).where(place))
    if digest is None:
        return False
    if digest != ref.digest:
        raise Refused(
            f"policy {ref.step} of epoch {ref.learner_epoch} is stored with digest"
            f" {digest.hex()[:12]}",
            Reason.POLICY_TAKEN,
        )
    return True


def read(connection: Connection, request: rs.ReadPoliciesRequest) -> rs.ReadPoliciesResponse:
    """Return policies of a run, oldest first: the next ones after a number, or the newest."""
    policies = [to_wire(row) for row in connection.execute(_page(request))]
    return rs.ReadPoliciesResponse(policies=policies[::-1] if request.newest else policies)


def _page(request: rs.ReadPoliciesRequest) -> Select[Any]:
    """Return the query of a page; by the index on run and number its cost does not grow with the
    run.
    """
    table = schema.policies
    query = select(table).where(table.c.run_id == request.run_id, table.c.n > request.after)
    if not request.abandoned:
        query = query.where(table.c.abandoned.is_(False))
    limit = min(request.newest or MAX_POLICIES, MAX_POLICIES)
    return query.order_by(table.c.n.desc() if request.newest else table.c.n).limit(limit)


def to_wire(row: Row[Any]) -> rs.StoredPolicy:
    """Return the message of a policy's row."""
    published = events_pb2.PolicyPublished.FromString(row.published)
    return rs.StoredPolicy(
        published=published, abandoned=row.abandoned, stored_unix_ms=row.stored_ms, number=row.n
    )


def of_batch(
    connection: Connection, run_id: str, ordinal: int
) -> events_pb2.PolicyPublished | None:
    """Return the policy that a batch made: the newest that is not abandoned, or else the newest."""
    table = schema.policies
    of_ordinal = (table.c.run_id == run_id) & (table.c.batch_ordinal == ordinal)
    newest_first = (table.c.abandoned, table.c.learner_epoch.desc())
    query = select(table.c.published).where(of_ordinal).order_by(*newest_first).limit(1)
    published = connection.scalar(query)
    return None if published is None else events_pb2.PolicyPublished.FromString(published)
