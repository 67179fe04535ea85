"""Growth budgets: never smaller, by one gateway only, once a round; and the facts that control
decides on.
"""

import asyncio
import itertools

import pytest

from banyan.errors import InvalidInput, Refused
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.rpc import rpc
from services.treestore.control import growth_budgets
from services.treestore.lifecycle import waits
from services.treestore.queries import trees
from services.treestore.storage import store_metadata


def room(leaves: int, round: int = 1, final: bool = False) -> tree_pb2.TreeRoom:
    return tree_pb2.TreeRoom(leaves=leaves, round=round, final=final)


def grant(world, *grants, epoch: int = 1) -> list[bytes]:
    messages = [rs.RoomGrant(tree_id=tree, room=budget) for tree, budget in grants]
    request = rs.GrantRoomsRequest(run_id=world.forge.run_id, gateway_epoch=epoch, grants=messages)
    return world.database.transact(lambda c: growth_budgets.grant(c, request, world.now()))


def facts(world, block: int = 2) -> list[rs.RoomFacts]:
    request = rs.ReadRoomsRequest(run_id=world.forge.run_id, block=block)
    return world.database.query(lambda c: growth_budgets.facts(c, request, world.now()))


def of(world, tree: bytes) -> tree_pb2.TreeRoom:
    return world.database.query(lambda c: trees.budgets_of(c, [tree]))[tree]


def test_room_only_ever_grows_and_takes_effect_once_a_round(world) -> None:
    spec = world.forge.spec()
    world.open(spec)
    tree = spec.tree_id
    assert grant(world, (tree, room(6, 2))) == [], "the first round is the first"
    assert grant(world, (tree, room(6))) == [tree]
    assert grant(world, (tree, room(6))) == [], "the same again changes nothing"
    assert grant(world, (tree, room(5, 2))) == [], "it never shrinks"
    assert grant(world, (tree, room(9, 3))) == [], "no round is left out"
    assert grant(world, (tree, room(6, 2, True))) == [tree]
    assert grant(world, (tree, room(9, 3))) == [], "no more comes after the last"
    assert of(world, tree) == room(6, 2, True)


def test_an_older_gateway_gives_nothing(world) -> None:
    spec = world.forge.spec()
    world.open(spec)
    world.database.transact(lambda c: store_metadata.rise(c, "gateway_epoch"))
    with pytest.raises(Refused, match="gateway epoch 1"):
        grant(world, (spec.tree_id, room(6)))
    assert grant(world, (spec.tree_id, room(6)), epoch=2) == [spec.tree_id]


def test_a_tree_that_grows_no_more_or_is_unknown_is_passed_over(world) -> None:
    over, grows = world.forge.spec(0), world.forge.spec(1)
    world.live(over)
    world.open(grows)
    assert grant(
        world, (over.tree_id, room(6)), (b"x" * 32, room(6)), (grows.tree_id, room(6))
    ) == [grows.tree_id]
    with pytest.raises(InvalidInput, match="twice"):
        grant(world, (grows.tree_id, room(7, 2)), (grows.tree_id, room(8, 2)))


def test_facts_are_those_of_blocks_that_grow(world) -> None:
    forge = world.forge
    done, late, first = (forge.spec(n) for n in range(3))
    other = forge.spec(3)
    world.live(done)
    for spec in (late, first):
        world.open(spec)
    world.live(other)
    root = forge.root(first)
    a, b = forge.child(root, 0), forge.child(root, 1)
    world.ingest(
        forge.segments(root),
        forge.segments(a, b),
        forge.leaf(a),
        forge.leaf(b),
        forge.score(a, 0.5),
    )
    grant(world, (first.tree_id, room(6)))
    world.now.ms += 700
    room_facts = facts(world)
    assert [(f.group_ordinal, f.growing, f.leaves, len(f.scores)) for f in room_facts] == [
        (0, False, 0, 0),
        (1, True, 0, 0),
        (2, True, 2, 1),
        (3, False, 0, 0),
    ]
    assert (
        room_facts[2].room == room(6)
        and room_facts[2].waited_ms == 700
        and not room_facts[1].HasField("room")
    )
    request = rs.ReadRoomsRequest(run_id=forge.run_id, block=2)
    later = world.database.query(
        lambda c: growth_budgets.facts(c, request, world.now(), world.now.ms - 200)
    )
    assert later[2].waited_ms == 200, "the store was away for the rest"
    assert [f.group_ordinal for f in facts(world, 1)] == [1, 2], (
        "blocks of which nothing grows are left out"
    )


def test_seen_changes_with_a_score_and_with_what_grows(world) -> None:
    forge, run = world.forge, world.forge.run_id

    def read() -> int:
        return world.database.query(lambda c: growth_budgets.revision(c, run))

    revisions, spec = [read()], forge.spec()
    world.open(spec)
    revisions.append(read())
    root = forge.root(spec)
    leaf = forge.child(root)
    world.ingest(forge.segments(root), forge.segments(leaf), forge.leaf(leaf), forge.score(leaf))
    revisions.append(read())
    world.ingest(forge.grown(spec.tree_id, leaf))
    revisions.append(read())
    assert all(a != b for a, b in itertools.pairwise(revisions)) and all(revisions)


def test_a_node_hears_of_scores_and_of_later_rooms(world) -> None:
    spec = world.forge.spec()
    epoch = world.open(spec)
    grant(world, (spec.tree_id, room(6)))
    request = ts.AwaitScoresRequest(tree_id=spec.tree_id, epoch=epoch, known=1)
    answer = world.database.query(lambda c: waits.scores(c, request))
    assert answer.room == room(6) and not waits.has_news(request, answer), (
        "who does not ask for rooms is not woken by them"
    )
    request.room_known = 0
    assert waits.has_news(request, answer)
    request.room_known = 1
    assert not waits.has_news(request, answer)
    (tree,) = world.database.query(lambda c: trees.read(c, [spec.tree_id]))
    assert tree.room == room(6)


async def test_a_wait_for_room_ends_with_a_grant(store, eventually) -> None:
    spec = store.forge.spec()
    await store.publish(store.forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    ask = ts.AwaitScoresRequest(
        tree_id=spec.tree_id, epoch=epoch, known=1 << 31, room_known=0, deadline_ms=20_000
    )
    waiting = asyncio.create_task(rpc.call(store.trees.AwaitScores, ask, 30))
    read = rs.ReadRoomsRequest(run_id=store.forge.run_id, block=4)
    first = await rpc.call(store.runs.ReadRooms, read)
    assert [f.growing for f in first.trees] == [True] and first.seen
    read.known, read.deadline_ms = first.seen, 20_000
    news = asyncio.create_task(rpc.call(store.runs.ReadRooms, read, 30))
    grants = [rs.RoomGrant(tree_id=spec.tree_id, room=room(4))]
    request = rs.GrantRoomsRequest(run_id=store.forge.run_id, gateway_epoch=1, grants=grants)
    assert (await rpc.call(store.runs.GrantRooms, request)).granted == 1
    async with asyncio.timeout(10):
        assert (await waiting).room == room(4)
    await store.publish(*store.forge.life(spec, epoch=epoch))
    async with asyncio.timeout(10):
        assert (await news).seen != first.seen
