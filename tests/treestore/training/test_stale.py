"""Groups that grow too old while messages about them are still on their way (`control.stale_groups:
drop`).
"""

import pytest

from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import progress
from services.treestore.storage import schema
from services.treestore.training import batches, policies
from services.treestore.unit_of_work.rows import CLOSED, DROPPED, GROWING, GroupState
from tests.treestore.forge import World


def put_policy(world: World, step: int, epoch: int = 1, replayed: bool = False) -> None:
    ref = tree_pb2.PolicyRef(learner_epoch=epoch, step=step, digest=bytes([step]) * 32)
    published = events_pb2.PolicyPublished(run_id=world.forge.run_id, policy=ref)
    request = rs.PutPolicyRequest(policy=published, replayed=replayed)
    world.database.transact(lambda c: policies.put(c, request, world.now(), world.settings))


def _states(world: World) -> list[tuple[int, str]]:
    return [
        (row.state, row.reason)
        for row in sorted(world.rows(schema.trees), key=lambda row: row.tree_index)
    ]


def _check_over(world: World) -> None:
    """Check that the only group is dropped with both trees, counts no more for the gate, and has
    nothing left to train on.
    """
    group = world.one(schema.groups)
    assert (group.state, group.reason) == (GroupState.DROPPED, "STALE")
    assert (group.opened, group.done, group.dropped) == (2, 2, 2)
    assert _states(world) == [(DROPPED, "STALE")] * 2
    counts = world.database.query(
        lambda c: progress.read(c, world.forge.run_id, world.now())
    ).groups
    assert (counts.opened, counts.open, counts.closed, counts.dropped) == (1, 0, 0, 1)
    ask = ts.ReadyGroupsRequest(run_id=world.forge.run_id, use="train")
    assert not world.database.query(lambda c: batches.ready(c, ask)).groups


@pytest.mark.parametrize("closed", [False, True], ids=["growing", "closed"])
def test_a_policy_between_two_messages_of_a_group_ends_all_of_it(
    world: World, closed: bool
) -> None:
    early, late = (world.forge.spec(0, i, 2, last_step=1) for i in range(2))
    if closed:
        world.live(early)
    else:
        world.open(early)
    put_policy(world, 2)
    counts = world.database.query(
        lambda c: progress.read(c, world.forge.run_id, world.now())
    ).groups
    assert (counts.open, counts.closed, counts.dropped) == (0, 0, 1), (
        "the gate has its place back at once"
    )
    assignments = len(
        [row for row in world.rows(schema.outbox) if row.subject.startswith("growth.")]
    )
    world.ingest(world.forge.opened(late))
    _check_over(world)
    assert (
        len([row for row in world.rows(schema.outbox) if row.subject.startswith("growth.")])
        == assignments
    )
    world.ingest(*world.forge.life(late, epoch=1))
    _check_over(world)


def test_a_group_that_is_first_heard_of_under_a_later_policy_is_too_old(world: World) -> None:
    put_policy(world, 2)
    for index in range(2):
        world.ingest(world.forge.opened(world.forge.spec(0, index, 2, last_step=1)))
    _check_over(world)


def test_a_group_whose_trees_all_came_to_nothing_is_too_old_as_well(world: World) -> None:
    early, late = (world.forge.spec(0, i, 2, last_step=1) for i in range(2))
    world.return_tree(early.tree_id, world.open(early), "UNUSABLE: no")
    put_policy(world, 2)
    assert world.one(schema.groups).state == GroupState.DROPPED
    world.ingest(world.forge.opened(late))
    assert _states(world) == [(DROPPED, "UNUSABLE: no"), (DROPPED, "STALE")]
    group = world.one(schema.groups)
    assert (group.opened, group.done, group.dropped, group.reason) == (2, 2, 2, "STALE")


def test_a_policy_that_a_learner_replays_ends_what_is_too_old_for_it(world: World) -> None:
    """Its steps went back with the learner, so groups that came in between were young enough."""
    put_policy(world, 0)
    put_policy(world, 2)
    epoch = rs.TakeLearnerEpochRequest(
        run_id=world.forge.run_id, learner_id="learner-2", checkpoint_step=0
    )
    world.database.transact(lambda c: policies.take_epoch(c, epoch))
    for index in range(2):
        world.ingest(world.forge.opened(world.forge.spec(0, index, 2, last_step=1)))
    assert _states(world) == [(GROWING, "")] * 2
    put_policy(world, 2, epoch=2, replayed=True)
    _check_over(world)


def test_a_tree_that_is_opened_when_its_group_has_enough_is_too_many(world: World) -> None:
    specs = [world.forge.spec(0, i, 3, group_take=2) for i in range(3)]
    for spec in specs[:2]:
        world.live(spec)
    assert world.one(schema.groups).state == GroupState.OPEN
    world.ingest(world.forge.opened(specs[2]))
    assert _states(world) == [(CLOSED, ""), (CLOSED, ""), (DROPPED, "REDUNDANT")]
    group = world.one(schema.groups)
    assert (group.state, group.done, group.dropped) == (GroupState.CLOSED, 3, 1)
