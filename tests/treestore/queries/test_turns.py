"""Turns of stored paths: each answered action, with its receipt, within the bound of texts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from banyan.digest import blake
from banyan.environments import receipts
from banyan.environments.receipts import Receipt
from banyan.segment import Finish, Kind, Segment
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.queries import transcripts, turns
from services.treestore.storage.database import Database
from tests.banyan.environments.test_observation import SEEN
from tests.treestore.forge import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A store whose key is that of an empty secret."""
    return World(Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()).start()


def answer(world: World, action: Segment, text: str, call: str) -> Segment:
    seen = replace(SEEN, action=action.id, shown=blake(text.encode()), reward=0.5)
    mac = receipts.mac(world.settings.receipt_key, world.forge.run_id, action.tree_id, seen)
    fields: dict[str, Any] = {"kind": Kind.TOOL, "receipt": Receipt(seen, mac, call), "text": text}
    return world.forge.child(action, logprobs_T=[], policy=b"", finish=Finish.BOUNDARY, **fields)


def read(world: World, leaf: Segment, end: int) -> ts.LeafTranscript:
    place = tree_pb2.LeafRef(segment=leaf.id, end=end)
    key = ts.LeafKey(tree_id=leaf.tree_id, leaf=place, claim_epoch=1)
    (found,) = world.database.query(lambda c: transcripts.read(c, [key]))
    return found


def test_turns_are_what_was_answered_on_the_way(world: World) -> None:
    forge, spec = world.forge, world.forge.spec()
    world.ingest(forge.opened(spec))
    world.claim(spec.tree_id)
    root = forge.root(spec)
    first = forge.child(root, finish=Finish.TOOL_CALL)
    told = answer(world, first, "408", "12*34?")
    second = forge.child(told, finish=Finish.TOOL_CALL)
    more = answer(world, second, "17", "10+7?")
    last, other = forge.child(more), forge.child(told, 1)
    world.ingest(forge.segments(root, first, told, second, more, last, other))
    world.ingest(forge.leaf(last), forge.leaf(other), forge.leaf(told))
    found = read(world, last, len(last)).turns
    assert [(t.receipt.call, t.answer, t.action) for t in found] == [
        ("12*34?", "408", first.id),
        ("10+7?", "17", second.id),
    ]
    assert {t.receipt.observation.reward for t in found} == {0.5}
    assert [t.answer for t in read(world, other, len(other)).turns] == ["408"]
    assert [t.answer for t in read(world, told, len(told)).turns] == ["408"]
    by_id = {s.id: s for s in (root, first, told)}
    assert turns.of_path(by_id, Leaf(told.id, 0)) == []  # type: ignore[arg-type]


def test_early_texts_are_left_out_of_long_paths(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(turns, "MOST_TEXT", 8)
    forge, spec = world.forge, world.forge.spec()
    world.ingest(forge.opened(spec))
    world.claim(spec.tree_id)
    act = forge.child(forge.root(spec), finish=Finish.TOOL_CALL)
    told = answer(world, act, "long", "1+1?")
    again = forge.child(told, finish=Finish.TOOL_CALL)
    more = answer(world, again, "2", "3?")
    last = forge.child(more)
    world.ingest(forge.segments(forge.root(spec), act, told, again, more, last), forge.leaf(last))
    early, late = read(world, last, len(last)).turns
    assert (late.answer, late.receipt.call, late.left_out) == ("2", "3?", False)
    assert (early.answer, early.receipt.call, early.left_out) == ("", "", True)
    assert early.receipt.observation.outcome and early.receipt.observation.reward == 0.5
