"""Environments of runs: a class of the user's and functions, by a run of a real treestore."""

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan import digest
from banyan.draws import key as draw_key
from banyan.environments.hosted import Hosted
from banyan.environments.hosting import Hosting
from banyan.errors import InvalidInput, NotFound, Refused
from banyan.recipe import Recipe
from banyan.recipe_loader.environment_spec import environment_of
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.wire.generate_spec import GenerateSpec
from services.chassis.rpc import rpc
from services.verifier.environments.hosts import Hosts
from services.verifier.environments.opened.runs import GrpcRuns
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from tests.broker import NatsServer
from tests.treestore.client import Store, served
from tests.treestore.forge import Forge
from tests.verifier.opened.serving import Client, serving

HOSTED = Path(__file__).parents[1] / "hosted"
CORRIDOR = {"name": "corridors:Saved", "end": ".", "turns": 4, "answer_chars": 64}


@dataclass
class Corridors(Forge):
    """A run whose rows are places of the coin; the row 9 is held out."""

    environment: Any = None

    def row(self, ordinal: int) -> dict[str, Any]:
        return {"question": "where is the coin?", "coin": ordinal}

    @property
    def recipe(self) -> str:
        recipe = {"name": "test", "model": "tiny", "task": {"name": "arithmetic"}}
        return json.dumps({**recipe, "environment": self.environment})

    def run(self, held_out: tuple[bytes, ...] = (), **more: Any) -> rs.Run:
        run = super().run((digest.row_digest(self.row(9)),), **more)
        run.recipe_json = self.recipe
        return run

    def spec(self, *args: Any, **more: Any) -> tree_pb2.TreeSpec:
        environment = environment_of(Recipe.model_validate_json(self.recipe))
        generate = GenerateSpec(name="turns", max_new_tokens=8, environment=environment)
        return super().spec(*args, generate_json=generate.to_json(), **more)


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@pytest_asyncio.fixture
async def hosts() -> AsyncIterator[Hosts]:
    with importable(HOSTED):
        pool = Pool(Limits(deadline_s=5.0), width=2)
        yield Hosts(pool)
        await pool.close()


Opened = Callable[..., "contextlib.AbstractAsyncContextManager[tuple[Client, Store]]"]


@pytest.fixture
def opened(nats_server: NatsServer, tmp_path: Path, hosts: Hosts) -> Opened:
    """Return what starts a store with a run that has an environment, and a verifier beside it."""

    @contextlib.asynccontextmanager
    async def start(environment: Any) -> AsyncIterator[tuple[Client, Store]]:
        async with served(nats_server.url, tmp_path, begin=False) as store:
            store.forge = Corridors(environment=environment)
            await store.begin()
            async with serving(runs=GrpcRuns(store.channel), hosts=hosts) as client:
                yield client, store

    return start


def coin(place: int) -> str:
    return json.dumps({"question": "where is the coin?", "coin": place})


async def test_a_class_of_a_user_forks_and_its_end_is_the_end(opened: Opened) -> None:
    async with opened(CORRIDOR) as (client, store):
        begun = await client.begun(run_id=store.forge.run_id[:8], row_json=coin(1))
        key = begun.environment_id
        assert begun.end == "." and begun.about == ""
        right = await client.step(key, "I go right. and more")
        assert right.outcome == tree_pb2.TOOL_OUTCOME_FAILED  # the class takes bare words
        assert right.state == begun.state
        right = await client.step(key, "right.")
        assert (right.observation, right.anchor) == ("place 1", b"at 1")
        assert right.effect == tree_pb2.TOOL_EFFECT_STATE and right.state != begun.state
        fork = await client.fork(key)
        won = await client.step(key, "take.")
        assert (won.observation, won.reward, won.done) == ("you have the coin", 1.0, True)
        with pytest.raises(Refused, match=r"the episode of environment .* is over; open another"):
            await client.step(key, "left.")
        with pytest.raises(Refused, match="is over"):
            await client.step(await client.fork(key), "left.")
        assert (await client.step(fork, "left.")).observation == "place 0"
        with pytest.raises(Refused, match="has had all its actions"):
            for _ in range(5):  # environment.turns is 4
                await client.step(fork, "left.")


async def test_a_tree_gives_its_row_and_its_seed(opened: Opened) -> None:
    dice = {"name": "corridors:Dice", "end": "."}
    async with opened(dice) as (client, store):
        spec = store.forge.spec(2, seed=77)
        await store.publish(store.forge.opened(spec))
        await store.claim(spec.tree_id)
        run_id = store.forge.run_id
        begun = await client.begun(run_id=run_id, tree_id=spec.tree_id)
        state = Hosted("corridors:Dice", {}, Hosting(end=".")).reset(
            json.loads(spec.row_json), draw_key(77, "environment")
        )
        assert begun.state == digest.blake(state)  # as the tree's first receipt has it
        other = await client.begun(run_id=run_id, tree_id=spec.tree_id, seed=78)
        again = await client.begun(run_id=run_id, row_json=spec.row_json, seed=77)
        assert begun.state == again.state != other.state
        zero = await client.begun(run_id=run_id, tree_id=spec.tree_id, seed=0)
        named = await client.begun(run_id=run_id, row_json=spec.row_json)
        assert zero.state == named.state != begun.state, "0 is a seed, too"
        with pytest.raises(InvalidInput, match="give row_json or tree_id"):
            await client.open(run_id=run_id, tree_id=spec.tree_id, row_json=coin(2))


async def test_a_tree_gives_its_environment_and_only_to_its_run(opened: Opened) -> None:
    async with opened(CORRIDOR) as (client, store):
        spec = store.forge.spec(2)
        spec.generate_json = spec.generate_json.replace('"turns": 4', '"turns": 1')
        await store.publish(store.forge.opened(spec))
        await store.claim(spec.tree_id)
        key = await client.open(run_id=store.forge.run_id, tree_id=spec.tree_id)
        assert client.table.get(key).turns == 1, "that of the tree, as it was opened"
        other = Corridors("quick-00000002", environment=CORRIDOR)
        put = rs.PutRunRequest(run=other.run(), request_id="second", gateway_epoch=1)
        await rpc.call(store.runs.PutRun, put)
        with pytest.raises(NotFound, match=f"run {other.run_id} has no tree"):
            await client.open(run_id=other.run_id, tree_id=spec.tree_id)


async def test_rows_that_are_held_out_are_refused(opened: Opened) -> None:
    async with opened(CORRIDOR) as (client, store):
        run_id = store.forge.run_id
        measures = store.forge.spec(9, label="before-greedy")
        await store.publish(store.forge.opened(measures))
        await store.claim(measures.tree_id)
        for named in ({"row_json": coin(9)}, {"tree_id": measures.tree_id}):
            with pytest.raises(Refused, match="is held out in run") as refused:
                await client.open(run_id=run_id, **named)
            assert refused.value.reason == "HELD_OUT"
            assert "coin" not in str(refused.value)


async def test_functions_and_what_they_say_of_themselves(opened: Opened) -> None:
    tools = {"name": "tools", "settings": {"functions": ["shop:price", "shop:put"]}}
    async with opened(tools) as (client, store):
        begun = await client.begun(run_id=store.forge.run_id)
        assert '"name": "price"' in begun.about and begun.end == "</tool_call>"
        trunk = begun.environment_id
        fork = await client.fork(trunk)
        texts = []
        for key, item in ((trunk, "tea"), (fork, "rice"), (trunk, "salt")):
            call = json.dumps({"name": "put", "arguments": {"items": [item]}})
            texts.append((await client.step(key, f"<tool_call>{call}</tool_call>")).observation)
        assert texts == ["tea", "rice", "tea, salt"]


BROKEN = {
    "init": "'corridors:Bad' cannot be loaded: its constructor raised RuntimeError: no init",
    "reset": "reset raised KeyError: 'field'",
}


@pytest.mark.parametrize("where", BROKEN)
async def test_a_class_that_cannot_begin_is_not_opened(opened: Opened, where: str) -> None:
    bad = {"name": "corridors:Bad", "settings": {"where": where}, "end": "."}
    async with opened(bad) as (client, store):
        with pytest.raises(InvalidInput, match=BROKEN[where]):
            await client.open(run_id=store.forge.run_id)


async def test_what_a_class_breaks_later_leaves_its_place(opened: Opened) -> None:
    async with opened({"name": "corridors:Bad", "end": "."}) as (client, store):
        key = await client.open(run_id=store.forge.run_id)
        with pytest.raises(Refused, match=r"step\(action\) must return") as refused:
            await client.step(key, "a.")
        assert refused.value.reason == "ENVIRONMENT_FAULT"
        assert client.table.get(key).turns == 8 and not client.table.get(key).done


async def test_a_crash_is_the_actions_own_answer(opened: Opened) -> None:
    crash = {"name": "corridors:Bad", "settings": {"where": "kill"}, "end": "."}
    async with opened(crash) as (client, store):
        begun = await client.begun(run_id=store.forge.run_id)
        answer = await client.step(begun.environment_id, "a.")
        assert answer.outcome == tree_pb2.TOOL_OUTCOME_CRASHED
        assert answer.observation == "error: the environment crashed"
        assert answer.state == begun.state


async def test_what_no_run_has_is_refused_by_name(
    opened: Opened, eventually: Callable[..., Awaitable[None]]
) -> None:
    async with opened(None) as (client, store):
        run_id = store.forge.run_id
        with pytest.raises(InvalidInput, match=f"run {run_id} has no environment; name a run"):
            await client.open(run_id=run_id)
        with pytest.raises(InvalidInput, match="settings_json goes with a named environment"):
            await client.open(run_id=run_id, settings_json="{}")
        with pytest.raises(NotFound, match="nobody"):
            await client.open(run_id="nobody")
        with pytest.raises(NotFound):
            await client.open(run_id=run_id, tree_id=b"t" * 32)
        with pytest.raises(NotFound):
            await client.open(run_id="r" * 1_000_000)
