"""Policies: published once, abandoned by a rewind, read page by page."""

from pathlib import Path

import pytest
from sqlalchemy.dialects import sqlite

from banyan.errors import InvalidInput, Refused
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.api import lineage
from services.treestore.control import progress
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.training import policies
from tests.treestore.forge import World
from tests.treestore.training.test_batches import closed_groups, commit


def _policy(
    world: World,
    step: int,
    epoch: int = 1,
    digest: bytes = b"",
    batch: int | None = None,
    replayed: bool = False,
) -> None:
    published = events_pb2.PolicyPublished(
        run_id=world.forge.run_id,
        policy=tree_pb2.PolicyRef(
            learner_epoch=epoch, step=step, digest=digest or bytes([step]) * 32
        ),
        batch_ordinal=batch,
        path="/nowhere",
    )
    request = rs.PutPolicyRequest(policy=published, replayed=replayed)
    world.database.transact(lambda c: policies.put(c, request, world.now(), world.settings))


def _step(world: World) -> int | None:
    read = world.database.query(lambda c: progress.read(c, world.forge.run_id, world.now()))
    return read.step if read.HasField("step") else None


def test_a_policy_is_announced_once(world: World) -> None:
    assert _step(world) is None
    _policy(world, 0)
    _policy(world, 0)
    _policy(world, 1, batch=0)
    assert _step(world) == 1
    events = [r for r in world.rows(schema.outbox) if r.subject.endswith(".policy")]
    assert [events_pb2.PolicyPublished.FromString(r.payload).policy.step for r in events] == [0, 1]
    with pytest.raises(Refused) as refused:
        _policy(world, 1, digest=b"x" * 32)
    assert refused.value.reason == "POLICY_TAKEN"
    with pytest.raises(Refused) as refused:
        _policy(world, 2, epoch=9)
    assert refused.value.reason == "STALE_EPOCH"
    with pytest.raises(InvalidInput):
        _policy(world, 2, digest=b"short")


def test_a_rewind_abandons_later_policies_and_replay_stores_them_anew(world: World) -> None:
    groups = closed_groups(world, range(3))
    for step in range(4):
        if step:
            commit(world, step - 1, groups[step - 1 : step])
        _policy(world, step, batch=step - 1 if step else None)
    take = rs.TakeLearnerEpochRequest(run_id=world.forge.run_id, learner_id="l2", checkpoint_step=1)
    answer = world.database.transact(lambda c: policies.take_epoch(c, take))
    assert (answer.epoch, answer.next_ordinal) == (2, 3)
    assert _step(world) == 1
    _policy(world, 1, epoch=2, batch=0)
    _policy(world, 2, epoch=2, batch=1, replayed=True)
    events = [r.msg_id for r in world.rows(schema.outbox) if r.subject.endswith(".policy")]
    assert len(events) == 5 and not events[-1].endswith("-2-2"), (
        "what everybody has is not announced again"
    )
    assert _step(world) == 2
    ask = rs.ReadPoliciesRequest(run_id=world.forge.run_id)
    live = world.database.query(lambda c: policies.read(c, ask)).policies
    assert [(p.published.policy.learner_epoch, p.published.policy.step) for p in live] == [
        (1, 0),
        (1, 1),
        (2, 1),
        (2, 2),
    ]
    ask.abandoned = True
    every = world.database.query(lambda c: policies.read(c, ask)).policies
    assert [(p.published.policy.step, p.abandoned) for p in every] == [
        (0, False), (1, False), (2, True), (3, True), (1, False), (2, False)
    ]  # fmt: skip
    tree = world.forge.spec(1, 0, 2)
    root = world.forge.root(tree)
    read_policies = world.database.query(lambda c: lineage.consumers(c, root.id[:6])).consumers
    assert len(read_policies) == 1 and read_policies[0].batch.ordinal == 1
    assert (read_policies[0].policy.learner_epoch, read_policies[0].policy.step) == (2, 2)


def test_policies_come_page_by_page_or_only_the_newest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run has more policies, each with its metrics, than fit in an answer."""
    monkeypatch.setattr(policies, "MAX_POLICIES", 2)
    for step in range(5):
        _policy(world, step)

    def steps(**request: int) -> list[tuple[int, int]]:
        ask = rs.ReadPoliciesRequest(run_id=world.forge.run_id, **request)
        answer = world.database.query(lambda c: policies.read(c, ask)).policies
        return [(p.published.policy.step, p.number) for p in answer]

    read_policies: list[tuple[int, int]] = []
    while page := steps(after=read_policies[-1][1] if read_policies else 0):
        assert len(page) <= 2
        read_policies += page
    assert [step for step, _ in read_policies] == [0, 1, 2, 3, 4]
    assert steps(newest=1) == read_policies[-1:] and steps(newest=2) == read_policies[-2:] == steps(
        newest=9
    )
    assert steps(newest=1, after=read_policies[-1][1]) == []


@pytest.mark.parametrize("ask", [{"after": 3}, {"newest": 2}, {"newest": 2, "abandoned": True}])
def test_a_page_of_policies_is_read_without_the_others(tmp_path: Path, ask: dict[str, int]) -> None:
    """SQLite's plan neither scans nor sorts."""
    database = Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()
    query = policies._page(rs.ReadPoliciesRequest(run_id="r", **ask)).compile(
        dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}
    )
    plan = database.query(
        lambda c: [row.detail for row in c.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}")]
    )
    database.close()
    assert len(plan) == 1 and "USING INDEX ix_policies_run (run_id=? AND n>?)" in plan[0]
