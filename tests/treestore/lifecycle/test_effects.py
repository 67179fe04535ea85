"""Effects outside: noted before they begin, once for an action, and their answers kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from banyan.errors import NotFound, Refused
from banyan.segment import Finish, Segment
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import removal
from services.treestore.lifecycle import actions, effects
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from tests.treestore.forge import World
from tests.treestore.ingest.test_receipts import answer

RECEIPT = tree_pb2.Receipt(mac=b"proof", call="send\0")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()).start()


@pytest.fixture
def action(world: World) -> Segment:
    """An action of a claimed tree."""
    spec = world.forge.spec()
    epoch = world.open(spec)
    root = world.forge.root(spec)
    act = world.forge.child(root, finish=Finish.TOOL_CALL)
    world.ingest(world.forge.segments(root, act, epoch=epoch))
    return act


def begin(world: World, tree_id: bytes, action: bytes, epoch: int = 1) -> bool:
    request = ts.BeginEffectRequest(tree_id=tree_id, epoch=epoch, action=action, tool="send")
    return world.database.transact(lambda c: effects.begin(c, request, world.now())).begun


def end(world: World, tree_id: bytes, action: bytes, text: str = "sent\0") -> None:
    request = ts.EndEffectRequest(tree_id=tree_id, action=action, receipt=RECEIPT, text=text)
    world.database.transact(lambda c: effects.end(c, request))


def read(world: World, action: Segment, epoch: int = 1) -> ts.ActionWay:
    key = ts.ActionKey(tree_id=action.tree_id, epoch=epoch, action=action.id)
    request = ts.ReadActionsRequest(actions=[key])
    [outcome] = world.database.query(lambda c: actions.read(c, request, world.now())).outcomes
    return outcome.way


def test_only_the_first_may_begin_whoever_asks(world: World, action: Segment) -> None:
    assert not read(world, action).effect_begun
    assert begin(world, action.tree_id, action.id)
    assert not begin(world, action.tree_id, action.id)
    found = read(world, action)
    assert found.effect_begun and not found.turns[-1].HasField("receipt")
    world.return_tree(action.tree_id, 1, "drain")
    assert world.claim(action.tree_id, node="node-2") == 2
    assert not begin(world, action.tree_id, action.id, epoch=2), "a later claim may not either"


def test_nothing_begins_for_an_action_that_is_not_stored(world: World, action: Segment) -> None:
    other = world.forge.spec(ordinal=1)
    world.open(other)
    for tree_id, named in ((action.tree_id, b"x" * 32), (other.tree_id, action.id)):
        with pytest.raises(NotFound, match="is not stored"):
            begin(world, tree_id, named)
    assert not world.rows(schema.effects)


def test_nothing_begins_under_an_older_claim(world: World, action: Segment) -> None:
    world.return_tree(action.tree_id, 1, "drain")
    world.claim(action.tree_id, node="node-2")
    with pytest.raises(Refused):
        begin(world, action.tree_id, action.id, epoch=1)
    assert not world.rows(schema.effects)


def test_the_first_answer_stands_under_any_claim(world: World, action: Segment) -> None:
    with pytest.raises(NotFound, match="no effect was begun"):
        end(world, action.tree_id, action.id)
    begin(world, action.tree_id, action.id)
    world.return_tree(action.tree_id, 1, "drain")
    world.claim(action.tree_id, node="node-2")
    end(world, action.tree_id, action.id)
    end(world, action.tree_id, action.id, "another")
    last = read(world, action, epoch=2).turns[-1]
    assert (last.receipt, last.answer) == (RECEIPT, "sent\0"), "byte for byte"
    with pytest.raises(NotFound, match="no effect was begun"):
        end(world, b"t" * 32, action.id)


def test_the_answer_of_the_tree_comes_first(world: World, action: Segment) -> None:
    begin(world, action.tree_id, action.id)
    world.ingest(world.forge.segments(answer(world, action, "408")))
    found = read(world, action)
    assert found.effect_begun and found.turns[-1].answer == "408"


def test_a_copy_that_was_put_back_begins_nothing_that_may_have_begun(
    world: World, action: Segment
) -> None:
    answered = world.forge.child(action, finish=Finish.TOOL_CALL, ordinal=1)
    world.ingest(world.forge.segments(answered, answer(world, answered, "408"), epoch=1))
    world.database.transact(lambda c: effects.doubt(c, world.now()))
    assert [row.action for row in world.rows(schema.effects)] == [action.id]
    assert not begin(world, action.tree_id, action.id)
    assert not read(world, action).effect_begun, "what changes nothing outside is answered"


def test_a_store_that_is_rebuilt_keeps_the_answers_that_it_has(
    world: World, action: Segment
) -> None:
    begin(world, action.tree_id, action.id)
    end(world, action.tree_id, action.id)
    world.database.transact(lambda c: effects.doubt(c, world.now()))
    assert read(world, action).turns[-1].receipt == RECEIPT


@pytest.mark.parametrize("rebuild", [True, False])
def test_an_action_of_the_log_may_have_begun_only_in_a_store_that_is_rebuilt(
    world: World, rebuild: bool
) -> None:
    world.settings = replace(world.settings, rebuild=rebuild)
    spec = world.forge.spec()
    epoch = world.open(spec)
    root = world.forge.root(spec)
    act = world.forge.child(root, finish=Finish.TOOL_CALL)
    world.ingest(world.forge.segments(root, act, epoch=epoch))
    assert begin(world, spec.tree_id, act.id, epoch) is not rebuild


def test_effects_go_with_the_trees_of_their_run(world: World, action: Segment) -> None:
    begin(world, action.tree_id, action.id)
    assert schema.effects in removal._OF_TREES
    assert [row.action for row in world.rows(schema.effects)] == [action.id]
