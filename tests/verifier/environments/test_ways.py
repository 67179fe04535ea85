"""The way to an action, as the store says it: the action's text, its tree's seed and turns."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from banyan.draws import key as draw_key
from banyan.errors import Refused
from banyan.segment import Finish
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.lifecycle import actions as ways
from services.verifier.environments.actions import Actions
from services.verifier.environments.asked import OURS
from services.verifier.store import GrpcStore
from tests.broker import NatsServer
from tests.treestore.client import served
from tests.verifier.environments.test_actions import KEY, Adder, Store, acted, adder, ended

__all__ = ["adder"]  # a fixture


@dataclass
class Saying(Store):
    """A store that says this of the ways, too."""

    fields: dict[str, Any] = field(default_factory=dict)
    turns: int = 64

    async def read_action(self, *asked: Any, **more: Any) -> ts.ActionWay:
        way = await super().read_action(*asked, **more)
        spec = json.loads(way.generate_json)
        spec["environment"]["turns"] = self.turns
        way.MergeFrom(ts.ActionWay(generate_json=json.dumps(spec), **self.fields))
        return way


async def test_the_stores_text_is_the_action_whatever_the_node_says(adder: Adder) -> None:
    """In a run that a node joined; it is decoded from the action's tokens."""
    store = Saying(fields={"call": "3"})
    receipt, text = await acted(Actions(store, KEY), store, store.add(b"a" * 32), "100")
    assert (text, receipt.call, adder.steps) == ("sum 8", "3", ["3"])


async def test_an_action_of_special_tokens_alone_is_empty(adder: Adder) -> None:
    store = Saying(fields={"call": ""})
    ending = await ended(Actions(store, KEY), store.add(b"a" * 32), "100")
    assert ending.reason == "ENVIRONMENT_FAULT" and adder.steps == [""]


async def test_an_episode_begins_with_the_seed_of_its_tree(
    adder: Adder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def reset(row: Any, seed: int) -> bytes:
        seeds.append(seed)
        return b"5"

    monkeypatch.setattr(adder, "reset", reset)
    for seed in (77, 0):
        store = Saying(fields={"seed": seed})
        await acted(Actions(store, KEY), store, store.add(b"a" * 32), "1")
    assert seeds == [draw_key(77, "environment"), draw_key(0, "environment")]


async def test_a_path_acts_as_often_as_it_may_and_not_once_more(adder: Adder) -> None:
    store = Saying(turns=2)
    actions, path = Actions(store, KEY), [bytes([n]) * 32 for n in range(1, 4)]
    for action, parent in zip(path[:2], (b"", path[0]), strict=True):
        await acted(actions, store, store.add(action, parent), "1")
    with pytest.raises(Refused, match=r"is the 3th of its path, which may have 2 \(environment"):
        await acted(actions, store, store.add(path[2], path[1]), "1")
    assert len(adder.steps) == 2


async def test_ways_that_one_answer_has_no_room_for_are_asked_for_again(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "_MAX_BYTES", 1)
    async with served(nats_server.url, tmp_path) as store:
        forge, spec = store.forge, store.forge.spec()
        await store.publish(forge.opened(spec))
        epoch = await store.claim(spec.tree_id)
        root = forge.root(spec)
        said = [forge.child(root, number, finish=Finish.TOOL_CALL) for number in range(4)]
        await store.publish(forge.segments(root, *said, epoch=epoch))
        reads = GrpcStore(store.channel)
        found = await asyncio.gather(
            *(reads.read_action(spec.tree_id, epoch, one.id, 10.0, OURS) for one in said)
        )
    assert [[turn.action for turn in way.turns] for way in found] == [[one.id] for one in said]
