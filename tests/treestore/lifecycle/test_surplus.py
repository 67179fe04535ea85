"""Groups with spare trees, and groups that grow too old (RollArt, arXiv 2512.22560)."""

import itertools

import pytest

from banyan.errors import Refused
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import progress
from services.treestore.lifecycle import claims
from services.treestore.lifecycle.redundancy import surplus
from services.treestore.storage import schema
from services.treestore.training import batches, policies
from services.treestore.unit_of_work.rows import (
    CLOSED,
    CONSUMED,
    DROPPED,
    GROWING,
    GroupRow,
    GroupState,
    TreeRow,
)
from tests.treestore.forge import World


def _row(index: int, state: int, closed_ms: int = 0) -> TreeRow:
    return TreeRow(
        bytes([index]), "r", "g", index, 1, "", "", (), 1, 1, 1, state=state, closed_ms=closed_ms
    )


def _given_up(take: int, in_order: bool, *trees: tuple[int, int]) -> list[int]:
    group = GroupRow("r", "g", "", 0, 1, len(trees), take=take, take_in_order=int(in_order))
    return [
        t.tree_index
        for t in surplus(group, [_row(i, state, at) for i, (state, at) in enumerate(trees)])
    ]


def test_which_trees_are_too_many() -> None:
    growing, gone = (GROWING, 0), (DROPPED, 1)
    assert _given_up(2, False, growing, (CLOSED, 5), growing, growing) == []
    assert _given_up(2, False, growing, (CLOSED, 5), growing, (CLOSED, 3)) == [0, 2]
    assert _given_up(2, False, (CLOSED, 9), (CLOSED, 5), growing, (CLOSED, 3)) == [0, 2], (
        "the first two to close"
    )
    assert _given_up(2, True, growing, (CLOSED, 5), growing, (CLOSED, 3)) == [], (
        "it waits for tree 0, however long it takes"
    )
    assert _given_up(2, True, (CLOSED, 9), (CLOSED, 5), growing, (CLOSED, 3)) == [2, 3]
    assert _given_up(2, True, gone, (CLOSED, 5), (CLOSED, 9), growing) == [3], (
        "a spare stands in for a tree given up"
    )
    assert _given_up(2, False, gone, gone, gone, (CLOSED, 3)) == [], "too few are left: all count"
    assert _given_up(0, False, (CLOSED, 1), growing) == []


def _states(world: World, ordinal: int = 0) -> list[tuple[int, str]]:
    rows = world.rows(schema.trees, group_id=world.forge.spec(ordinal).group_id)
    return [(row.state, row.reason) for row in sorted(rows, key=lambda row: row.tree_index)]


def _finish(world: World, spec: tree_pb2.TreeSpec, epoch: int) -> None:
    world.now.ms += 10
    world.ingest(*world.forge.life(spec, epoch=epoch))


def test_a_group_takes_the_first_trees_that_close_and_stops_the_others(world: World) -> None:
    specs = [world.forge.spec(0, i, 4, group_take=2) for i in range(4)]
    epochs = [world.open(spec) for spec in specs]
    _finish(world, specs[3], epochs[3])
    assert [s for s, _ in _states(world)] == [GROWING, GROWING, GROWING, CLOSED]
    _finish(world, specs[1], epochs[1])
    assert _states(world) == [
        (DROPPED, "REDUNDANT"),
        (CLOSED, ""),
        (DROPPED, "REDUNDANT"),
        (CLOSED, ""),
    ]
    assert world.one(schema.groups).state == GroupState.CLOSED
    with pytest.raises(Refused, match="grows no more") as refused:
        world.database.transact(
            lambda c: claims.renew(c, specs[0].tree_id, epochs[0], world.now(), world.settings)
        )
    assert refused.value.reason == "NOT_GROWING", "its node hears of it with its next renewal"
    before = world.rows(schema.segments)
    _finish(world, specs[0], epochs[0])
    assert world.rows(schema.segments) == before, "what comes late is kept aside"
    assert {row.reason for row in world.rows(schema.refused)} == {"TREE_DROPPED"}
    request = ts.ReadyGroupsRequest(run_id=world.forge.run_id, use="train")
    (ready,) = world.database.query(lambda c: batches.ready(c, request)).groups
    assert list(ready.tree_ids) == [specs[1].tree_id, specs[3].tree_id]
    counts = world.database.query(
        lambda c: progress.read(c, world.forge.run_id, world.now())
    ).groups
    assert (counts.open, counts.closed, counts.dropped) == (0, 1, 0)


def test_trees_that_close_in_one_transaction_are_not_too_many_either(world: World) -> None:
    specs = [world.forge.spec(0, i, 3, group_take=2) for i in range(3)]
    epochs = [world.open(spec) for spec in specs]
    lives = [world.forge.life(spec, epoch=epoch) for spec, epoch in zip(specs, epochs, strict=True)]
    world.ingest(*itertools.chain(*lives))
    assert _states(world) == [(CLOSED, ""), (CLOSED, ""), (DROPPED, "REDUNDANT")]
    assert world.one(schema.groups).state == GroupState.CLOSED


def test_a_spare_takes_the_place_of_a_tree_that_is_given_up(world: World) -> None:
    specs = [world.forge.spec(0, i, 4, group_take=2, take_in_order=True) for i in range(4)]
    epochs = [world.open(spec) for spec in specs]
    for index in (3, 2, 0):
        _finish(world, specs[index], epochs[index])
    assert [s for s, _ in _states(world)] == [CLOSED, GROWING, CLOSED, CLOSED], (
        "it waits for tree 1, not for what is quick"
    )
    world.return_tree(specs[1].tree_id, epochs[1], "UNUSABLE: no")
    assert _states(world) == [
        (CLOSED, ""),
        (DROPPED, "UNUSABLE: no"),
        (CLOSED, ""),
        (DROPPED, "REDUNDANT"),
    ]
    assert world.one(schema.groups).state == GroupState.CLOSED


def _policy(world: World, step: int) -> None:
    ref = tree_pb2.PolicyRef(learner_epoch=1, step=step, digest=bytes([step]) * 32)
    published = events_pb2.PolicyPublished(run_id=world.forge.run_id, policy=ref)
    request = rs.PutPolicyRequest(policy=published)
    world.database.transact(lambda c: policies.put(c, request, world.now(), world.settings))


def test_a_group_that_is_too_old_is_given_up_with_its_late_results(world: World) -> None:
    for ordinal, last in ((0, 1), (1, 1), (2, 2)):
        world.open(world.forge.spec(ordinal, 0, 2, last_step=last))
        world.live(world.forge.spec(ordinal, 1, 2, last_step=last))
    world.ingest(
        *world.forge.life(world.forge.spec(1, 0, 2), epoch=1)
    )  # group 1 is closed, and no batch took it
    world.live(world.forge.spec(3))  # has no last step
    _policy(world, 1)
    assert "STALE" not in {row.reason for row in world.rows(schema.groups)}
    _policy(world, 2)
    rows = sorted(world.rows(schema.groups), key=lambda r: r.ordinal)
    assert [(r.state, r.reason) for r in rows] == [
        (GroupState.DROPPED, "STALE"),
        (GroupState.DROPPED, "STALE"),
        (GroupState.OPEN, ""),
        (GroupState.CLOSED, ""),
    ]
    assert _states(world, 0) == _states(world, 1) == [(DROPPED, "STALE")] * 2
    world.ingest(*world.forge.life(world.forge.spec(0, 0, 2), epoch=1))
    assert _states(world, 0) == [(DROPPED, "STALE")] * 2, "late results change nothing"
    counts = world.database.query(
        lambda c: progress.read(c, world.forge.run_id, world.now())
    ).groups
    assert (counts.open, counts.closed, counts.dropped) == (1, 1, 2)
    assert CONSUMED not in {row.state for row in world.rows(schema.trees)}
