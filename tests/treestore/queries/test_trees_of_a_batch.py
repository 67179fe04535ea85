"""The trees of a training step: those of its batch, whichever policies sampled them."""

from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from banyan.policy import batch_of
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.queries import trees
from services.treestore.storage.database import Database
from services.treestore.training import batches
from tests.treestore.forge import World
from tests.treestore.queries.test_plans import plans, scans
from tests.treestore.work import steps

TRAIN, CONSUMED = tree_pb2.TREE_PURPOSE_TRAIN, tree_pb2.TREE_STATE_CONSUMED


def _grow(world: World, ordinal: int, policy_step: int, index: int = 0, size: int = 1) -> bytes:
    """Grow a tree of two leaves whose newest segment a policy sampled; return its id."""
    forge, spec = world.forge, world.forge.spec(ordinal, index, size)
    epoch, root = world.open(spec), world.forge.root(spec)
    older = forge.child(root, 0, policy_step=max(0, policy_step - 1))
    newest = forge.child(root, 1, policy_step=policy_step)
    world.ingest(
        forge.segments(root, older, newest, epoch=epoch),
        *(forge.leaf(leaf, epoch=epoch) for leaf in (older, newest)),
        forge.grown(spec.tree_id, older, newest, epoch=epoch),
        *(forge.score(leaf, 1.0) for leaf in (older, newest)),
    )
    return bytes(spec.tree_id)


def _commit(world: World, ordinal: int, groups: list[int], replayed: list[int]) -> None:
    forge = world.forge
    again = [forge.spec(number) for number in replayed]
    request = ts.CommitBatchRequest(
        run_id=forge.run_id,
        ordinal=ordinal,
        learner_epoch=1,
        use="train",
        group_ids=[forge.spec(number).group_id for number in groups],
        replayed=[ts.ReplayedTree(tree_id=s.tree_id, group_id=s.group_id) for s in again],
    )
    world.database.transact(lambda c: batches.commit(c, request, world.now(), world.settings))


def _of(world: World, **chosen: object) -> list[bytes]:
    filters = ts.TreeFilter(run_id=world.forge.run_id, **chosen)  # type: ignore[arg-type]
    listed = world.database.query(lambda c: trees.summaries(c, filters)).trees
    return [summary.tree_id for summary in listed]


def test_a_step_has_the_trees_of_its_batch_at_any_staleness(world: World) -> None:
    """Three batches of three groups each; their trees are 0, 1 and 2 steps old when trained on."""
    grown = [
        _grow(world, 3 * batch + age, max(0, batch - age)) for batch in range(3) for age in range(3)
    ]
    _commit(world, 0, [0, 1, 2], [])
    _commit(world, 1, [3, 4, 5], [0])
    _commit(world, 2, [6, 7, 8], [1, 4])
    assert _of(world, batch=batch_of(1)) == grown[2::-1]
    assert _of(world, batch=batch_of(2)) == [*grown[5:2:-1], grown[0]]  # and what it replayed
    of_third = [*grown[8:5:-1], grown[4], grown[1]]
    assert _of(world, batch=batch_of(3), purpose=TRAIN) == of_third
    # The policy of the step before sampled only one of them, so its step does not name them.
    assert _of(world, policy_step=2) == [grown[6]]
    assert _of(world, batch=batch_of(3), policy_step=1) == [grown[7]]
    assert _of(world, batch=batch_of(4)) == []


def test_its_pages_go_on_behind_the_last_number(world: World) -> None:
    grown = [_grow(world, 0, 0, index, 5) for index in range(5)]
    _commit(world, 0, [0], [])
    found: list[bytes] = []
    before = 0
    while True:
        filters = ts.TreeFilter(run_id=world.forge.run_id, batch=0, limit=2, before=before)
        page = world.database.query(lambda c, f=filters: trees.summaries(c, f)).trees
        if not page:
            break
        found += [summary.tree_id for summary in page]
        before = page[-1].number
    assert found == grown[::-1]
    in_order = ts.TreeFilter(run_id=world.forge.run_id, batch=0)
    assert world.database.query(lambda c: trees.ids(c, in_order)) == grown


def test_a_batch_of_no_run_is_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match="batch 3 is of no run: name the run"):
        world.database.query(lambda c: trees.summaries(c, ts.TreeFilter(batch=3)))


def test_it_costs_the_same_however_many_trees_the_run_has(tmp_path: Path) -> None:
    world = World(Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()).start()
    for number in range(4):
        _grow(world, number, 0)
    _commit(world, 0, [0, 1], [])
    _commit(world, 1, [2, 3], [0])
    filters = [
        ts.TreeFilter(run_id=world.forge.run_id, batch=1, limit=51, **more)
        for more in ({}, {"purpose": TRAIN}, {"states": [CONSUMED]}, {"policy_step": 0})
    ]

    def spent() -> list[int]:
        return [steps(world.database, lambda c, f=f: trees.summaries(c, f)) for f in filters]

    for one in filters:
        plan_of = plans(world.database, lambda c, f=one: trees.summaries(c, f))
        assert plan_of and not scans(plan_of, sorts=False), plan_of
    few = spent()
    world.ingest(world.forge.all_opened([world.forge.spec(number) for number in range(4, 404)]))
    for number in range(4, 40):
        _grow(world, number, 0)
    _commit(world, 2, list(range(4, 40)), [])
    assert all(many <= before + 20 for many, before in zip(spent(), few, strict=True)), few
    world.database.close()
