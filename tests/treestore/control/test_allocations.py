"""Decisions of curricula and their grounds: allocations, of which the first one is in force, and
the outcomes of batches.
"""

import pytest

from banyan.errors import InvalidInput, Refused
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import allocations, runs
from services.treestore.queries import group_outcomes
from services.treestore.training import batches
from tests.treestore.forge import World


def _put(
    world: World, *rows: tuple[int, int], epoch: int = 1, **more: object
) -> list[rs.GroupAllocation]:
    wanted = [rs.GroupAllocation(ordinal=o, row=r, **more) for o, r in rows]
    request = rs.PutAllocationsRequest(
        run_id=world.forge.run_id, gateway_epoch=epoch, allocations=wanted
    )
    return list(
        world.database.transact(lambda c: allocations.put(c, request, world.now())).allocations
    )


def _read(world: World, first: int = 0, limit: int = 0) -> list[tuple[int, int]]:
    request = rs.ReadAllocationsRequest(run_id=world.forge.run_id, first=first, limit=limit)
    response = world.database.query(lambda c: allocations.read(c, request)).allocations
    return [(a.ordinal, a.row) for a in response]


def test_an_allocation_is_stored_whole(world: World) -> None:
    more = {
        "settings_json": '{"width": 4}',
        "messages_json": "[]",
        "trees": 2,
        "max_new_tokens": 9,
        "why": "hard",
        "batches": 3,
    }
    (stored,) = _put(world, (0, 7), **more)
    assert stored == rs.GroupAllocation(ordinal=0, row=7, **more)  # type: ignore[arg-type]
    assert _put(world, (0, 7), **more) == [stored], "the same again changes nothing"


def test_the_first_allocation_of_an_ordinal_holds_also_against_a_newer_gateway(
    world: World,
) -> None:
    _put(world, (0, 10), (1, 11))
    epoch = world.database.transact(runs.take_gateway_epoch)
    answered = _put(world, (2, 92), (1, 91), (3, 93), epoch=epoch)
    assert [(a.ordinal, a.row) for a in answered] == [(2, 92), (1, 11), (3, 93)], (
        "in the order of the request"
    )
    assert _read(world) == [(0, 10), (1, 11), (2, 92), (3, 93)]


def test_an_older_gateway_allocates_nothing(world: World) -> None:
    world.database.transact(runs.take_gateway_epoch)
    with pytest.raises(Refused) as refused:
        _put(world, (0, 1), epoch=1)
    assert refused.value.reason == "STALE_EPOCH" and _read(world) == []


def test_an_ordinal_is_named_once(world: World) -> None:
    with pytest.raises(InvalidInput, match="names group 4 twice"):
        _put(world, (4, 1), (5, 1), (4, 2))


def test_allocations_are_read_in_pages(world: World) -> None:
    _put(world, *((o, o + 100) for o in reversed(range(7))))
    assert _read(world, limit=3) == [(0, 100), (1, 101), (2, 102)]
    assert _read(world, first=5) == [(5, 105), (6, 106)]


def test_an_answer_holds_about_eight_megabytes(world: World) -> None:
    for ordinal in range(7):
        _put(world, (ordinal, ordinal), messages_json="x" * (3 << 20))
    assert [_read(world), _read(world, 3), _read(world, 6)] == [
        [(0, 0), (1, 1), (2, 2)],
        [(3, 3), (4, 4), (5, 5)],
        [(6, 6)],
    ]


def test_more_than_a_page_is_read_at_once(world: World) -> None:
    _put(world, *((o, o) for o in range(600)))
    assert _read(world) == [(o, o) for o in range(600)]
    assert len(_read(world, limit=300)) == 300 and len(_read(world, limit=256)) == 256


def test_a_gap_is_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match="names group 1, and group 0 has no allocation yet"):
        _put(world, (1, 1))
    _put(world, (0, 0), (1, 1))
    with pytest.raises(InvalidInput, match="names group 4, and group 3 has no allocation yet"):
        _put(world, (4, 4), (1, 1), (2, 2))
    assert _read(world) == [(0, 0), (1, 1)]
    _put(world, (3, 3), (2, 2), (0, 9))
    assert _read(world) == [(0, 0), (1, 1), (2, 2), (3, 3)]


def _commit(world: World, ordinal: int, taken: list[int]) -> None:
    groups = [world.forge.spec(o).group_id for o in taken]
    request = ts.CommitBatchRequest(
        run_id=world.forge.run_id,
        ordinal=ordinal,
        learner_epoch=1,
        use="train",
        group_ids=groups,
    )
    world.database.transact(lambda c: batches.commit(c, request, world.now(), world.settings))


def _outcomes(
    world: World, first: int, before: int
) -> tuple[list[tuple[int, int, list[float], list[int]]], int]:
    request = rs.ReadOutcomesRequest(
        run_id=world.forge.run_id, first_batch=first, before_batch=before
    )
    response = world.database.query(lambda c: group_outcomes.read(c, request))
    return [
        (g.ordinal, g.batch, sorted(g.rewards), sorted(g.lengths)) for g in response.groups
    ], response.next_batch


def test_outcomes_are_the_rewards_and_lengths_of_the_leaves_of_batches(world: World) -> None:
    for ordinal in range(4):
        world.live(world.forge.spec(ordinal), width=3, value=0.5)
    assert _outcomes(world, 0, 9) == ([], 0), "what no batch took is no fact yet"
    _commit(world, 0, [0, 2])
    _commit(world, 1, [1, 3])
    leaves = ([0.0, 0.5, 1.0], [4, 4, 8])  # the last branch is continued
    assert _outcomes(world, 0, 1) == ([(0, 0, *leaves), (2, 0, *leaves)], 1)
    assert _outcomes(world, 1, 9) == ([(1, 1, *leaves), (3, 1, *leaves)], 2)


def test_answers_that_solved_come_where_they_are_asked_for_and_are_cut(world: World) -> None:
    for ordinal, rewards in enumerate([(0.0, 0.7), (0.2, 0.4), (1.0, 1.0)]):
        spec = world.forge.spec(ordinal)
        epoch = world.open(spec)
        root = world.forge.root(spec)
        leaves = [world.forge.child(root, place) for place in range(2)]
        world.ingest(
            world.forge.segments(root, *leaves, epoch=epoch),
            *(
                world.forge.leaf(leaf, epoch=epoch, completion=f"{ordinal}: {n} is it")
                for n, leaf in enumerate(leaves)
            ),
            world.forge.grown(spec.tree_id, *leaves, epoch=epoch),
            *(
                world.forge.score(leaf, reward)
                for leaf, reward in zip(leaves, rewards, strict=True)
            ),
        )
    _commit(world, 0, [0, 1, 2])
    wanted = rs.ReadOutcomesRequest(run_id=world.forge.run_id, before_batch=1)
    assert {
        g.solved for g in world.database.query(lambda c: group_outcomes.read(c, wanted)).groups
    } == {""}
    wanted.solved_chars, wanted.right = 7, 0.5
    first, second, third = world.database.query(lambda c: group_outcomes.read(c, wanted)).groups
    assert (
        first.solved == "0: 1 is" and second.solved == "" and third.solved in ("2: 0 is", "2: 1 is")
    )


def test_a_leaf_without_a_value_has_no_reward(world: World) -> None:
    spec = world.forge.spec(0, scorers=["number", "regex"])
    epoch = world.open(spec)
    root = world.forge.root(spec)
    short, long = world.forge.child(root, 0), world.forge.child(root, 1, 6)
    world.ingest(
        world.forge.segments(root, short, long, epoch=epoch),
        world.forge.leaf(short, epoch=epoch), world.forge.leaf(long, epoch=epoch),
        world.forge.grown(spec.tree_id, short, long, epoch=epoch),
        world.forge.score(short, 1.0), world.forge.score(short, None, "regex"),
        world.forge.score(long, 1.0), world.forge.score(long, 0.0, "regex"),
    )  # fmt: skip
    _commit(world, 0, [0])
    assert _outcomes(world, 0, 1) == ([(0, 0, [0.5], [6])], 1)
