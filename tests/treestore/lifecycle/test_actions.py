"""The way to an action: that of its own path, however large the tree is."""

import random

import pytest

from banyan.errors import InvalidInput
from banyan.reasons import Reason
from banyan.segment import Finish, Segment
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import actions
from tests.treestore.forge import World
from tests.treestore.ingest.test_receipts import answer


def ways(world: World, rng: random.Random, size: int) -> dict[bytes, list[tuple[bytes, str]]]:
    """Grow a tree at random; return actions and answers on the way to each action."""
    spec = world.forge.spec(generate_json='{"name": "turns"}')
    root = world.forge.root(spec)
    places: list[tuple[Segment, list[tuple[bytes, str]]]] = [(root, [])]
    found, made, ordinals = dict[bytes, list[tuple[bytes, str]]](), [root], dict[bytes, int]()
    for number in range(size):
        parent, way = rng.choice(places)
        ordinal = ordinals[parent.id] = ordinals.get(parent.id, -1) + 1
        finish = rng.choice([Finish.TOOL_CALL, Finish.TOOL_CALL, Finish.BOUNDARY])
        said = world.forge.child(parent, ordinal, finish=finish)
        made.append(said)
        if finish is Finish.BOUNDARY:
            places.append((said, way))
            continue
        text = str(number) if rng.random() < 0.7 else ""
        found[said.id] = [*way, (said.id, text)]
        if text:
            made.append(answer(world, said, text))
            places.append((made[-1], found[said.id]))
    epoch = world.open(spec)
    world.ingest(world.forge.segments(*made, epoch=epoch))
    return found


def _read(
    world: World, *keys: ts.ActionKey, now_ms: int = 0, run_id: str = ""
) -> list[ts.WayOutcome]:
    request = ts.ReadActionsRequest(actions=keys)
    answer = world.database.query(lambda c: actions.read(c, request, now_ms, run_id))
    assert actions.has_news(answer) == any(o.refused or o.way.run_id for o in answer.outcomes)
    return list(answer.outcomes)


def test_each_action_has_the_turns_of_its_path(world: World) -> None:
    found = ways(world, random.Random(3), 30)
    assert max(map(len, found.values())) >= 3
    later = world.now() + 2500
    tree_id = world.forge.spec().tree_id
    keys = [ts.ActionKey(tree_id=tree_id, epoch=1, action=action) for action in found]
    outcomes = _read(world, *keys, now_ms=later)
    assert len(outcomes) == len(found)
    for outcome, way in zip(outcomes, found.values(), strict=True):
        read = outcome.way
        assert read.episode_ms == 2500
        assert [turn.action for turn in read.turns] == [said for said, _ in way]
        assert [turn.HasField("receipt") for turn in read.turns] == [bool(t) for _, t in way]
        for turn in read.turns[:-1]:
            assert turn.receipt.observation.action == turn.action and not turn.answer
        assert read.turns[-1].answer == way[-1][1]
        assert (read.run_id, read.row_json) == (world.forge.run_id, world.forge.spec().row_json)


def test_an_action_that_is_not_there_or_of_another_tree_has_no_way(world: World) -> None:
    found = ways(world, random.Random(3), 4)
    other = world.forge.spec(ordinal=1)
    epoch = world.open(other)
    mine = world.forge.spec().tree_id
    there = next(iter(found))
    keys = [
        ts.ActionKey(tree_id=tree_id, epoch=epoch, action=action)
        for tree_id, action in ((mine, b"x" * 32), (other.tree_id, there), (mine, there))
    ]
    assert [bool(o.way.run_id) for o in _read(world, *keys)] == [False, False, True]
    assert not any(o.refused for o in _read(world, *keys))


def test_a_claim_that_is_not_in_force_and_another_run_are_refused_alone(world: World) -> None:
    found = ways(world, random.Random(3), 4)
    mine, action = world.forge.spec().tree_id, next(iter(found))
    epochs = [ts.ActionKey(tree_id=mine, epoch=epoch, action=action) for epoch in (1, 0)]
    unknown = ts.ActionKey(tree_id=b"u" * 32, epoch=1, action=action)
    refused = [outcome.refused for outcome in _read(world, *epochs, unknown)]
    assert refused == ["", Reason.STALE_EPOCH, Reason.NOT_FOUND]
    assert [o.refused for o in _read(world, epochs[0], run_id="another")] == [Reason.OTHER_RUN]
    with pytest.raises(InvalidInput, match="65 actions at once; at most 64"):
        _read(world, *[epochs[0]] * 65)


def test_what_an_answer_has_no_room_for_is_left_for_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ways(world, random.Random(3), 12)
    tree_id = world.forge.spec().tree_id
    keys = [ts.ActionKey(tree_id=tree_id, epoch=1, action=action) for action in found]
    whole = _read(world, *keys)
    monkeypatch.setattr(actions, "_MAX_BYTES", whole[0].way.ByteSize() + whole[1].way.ByteSize())
    assert [o.refused for o in _read(world, *keys)] == ["", ""] + ["LATER"] * (len(keys) - 2)
    monkeypatch.setattr(actions, "_MAX_BYTES", 1)
    assert [o.refused for o in _read(world, *keys)] == [""] + ["LATER"] * (len(keys) - 1)
