"""Batches that ended their learners: counted by learner, set aside at the second (ADR 051)."""

import pytest

from banyan.errors import NotFound, Refused
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import learner_failures, progress
from services.treestore.training import batches, policies
from tests.treestore.forge import World
from tests.treestore.training.test_batches import closed_groups, commit


def _fails(
    world: World, epoch: int, cause: str = "IndexError: out of range", ordinal: int = 0
) -> int:
    request = ts.NoteFailureRequest(
        run_id=world.forge.run_id, ordinal=ordinal, learner_epoch=epoch, cause=cause
    )
    return world.database.transact(lambda c: learner_failures.record(c, request)).failures


def _next_learner(world: World) -> None:
    take = rs.TakeLearnerEpochRequest(run_id=world.forge.run_id, learner_id="next")
    world.database.transact(lambda c: policies.take_epoch(c, take))


def test_the_second_learner_that_fails_on_a_batch_has_it_set_aside(world: World) -> None:
    groups = closed_groups(world, range(2))
    commit(world, 0, groups[:1])
    assert (_fails(world, 1), _fails(world, 1)) == (1, 1)  # one learner, however often it reports

    def read() -> object:
        return world.database.query(lambda c: batches.read(c, world.forge.run_id, 0))

    assert not read().set_aside
    _next_learner(world)
    assert _fails(world, 2) == 2
    assert (
        read().set_aside
        == "2 learners ended while they trained it, the last with IndexError: out of range"
    )
    assert list(read().group_ids) == groups[:1] and read().tree_ids  # it stays in the lineage
    commit(world, 1, groups[1:], epoch=2)  # ordinals have no gap
    listed = world.database.query(
        lambda c: progress.read(c, world.forge.run_id, world.now())
    ).set_aside
    assert [(batch.ordinal, batch.cause) for batch in listed] == [(0, read().set_aside)]


def test_a_learner_that_is_over_and_a_batch_that_is_not_there_are_refused(world: World) -> None:
    commit(world, 0, closed_groups(world, range(1)))
    _next_learner(world)
    with pytest.raises(Refused) as refused:
        _fails(world, 1)
    assert refused.value.reason == "STALE_EPOCH"
    with pytest.raises(NotFound):
        _fails(world, 2, ordinal=1)
