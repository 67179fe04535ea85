"""One seed, whoever answers and when: the same trees in the same steps of the engine."""

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from banyan.environments import receipts
from banyan.environments.endings import Ending
from banyan.errors import TemporaryError
from banyan.segment import Kind
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from services.rollout.engines.thread import EngineThread
from services.rollout.growth.segments import ToolAnswer
from services.rollout.node import acting
from services.verifier.environments.actions import Actions
from services.verifier.jail.chosen_sessions import ChosenSessions
from services.verifier.store import GrpcStore
from tests.conftest import NatsServer
from tests.rollout.world import World, ids, world
from tests.system.tiny import byte_tokenizer, tiny_model

TREES, KEY = 4, receipts.key_of("")
TURNS = "methods.generate.turns:TurnForks"
# Code with a variable: each state is another one. What fails says so in its answer.
SESSION: Mapping[str, Any] = {
    "": {".": 0.7, "a": 0.2, "b": 0.1},
    ".": {"n": 1.0},
    ".n": {"=": 1.0},
    "=": {"3": 0.4, "n": 0.6},
    "n=n": {"*": 1.0},
    "*": {"n": 0.5, "2": 0.5},
    "3": {"?": 1.0},
    "*n": {"?": 1.0},
    "*2": {"?": 1.0},
    "a": {"b": 0.5, "": 0.5},
    "b": {"a": 0.5, "": 0.5},
}
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


class Verifiers:
    """Verifiers that answer in turn, late, and of which each may die at any moment."""

    def __init__(self, made: Sequence[Actions], seed: int, dies: float, wait_s: float) -> None:
        self._made, self._rng = made, random.Random(seed)
        self._dies, self._wait_s = dies, wait_s
        self.answered = self.died = 0

    async def act(self, tree_id: bytes, epoch: int, action: bytes, **more: Any) -> Any:
        actions = self._rng.choice(self._made)
        await asyncio.sleep(self._rng.uniform(0, self._wait_s))
        if self._rng.random() < self._dies:
            self.died += 1
            actions._states = type(actions._states)()
            raise TemporaryError("the verifier was killed")
        found = await actions.act(tree_id, epoch, action, **more)
        await asyncio.sleep(self._rng.uniform(0, self._wait_s))
        self.answered += 1
        return found if isinstance(found, Ending) else ToolAnswer(*found)


def scripted(folder: Path) -> tuple[dict[str, Any], EnvironmentSpec, tuple[Any, ...]]:
    settings = {"begin": ".", "end": "?"}
    spec = EnvironmentSpec(name="python", settings=settings, turns=3, deterministic=True)
    return {"engine": "scripted", "engine_settings": {"chain": SESSION}}, spec, ()


def torch(folder: Path) -> tuple[dict[str, Any], EnvironmentSpec, tuple[Any, ...]]:
    byte_tokenizer(tiny_model(folder, vocab=257))
    settings = {"begin": "=", "end": "?"}
    spec = EnvironmentSpec(name="calculator", settings=settings, turns=3, deterministic=True)
    resources = {
        "engine": "torch",
        "dtype": "float32",
        "kv_tokens": 8192,
        "max_branches": 6,  # others wait, and are admitted in logical order
    }
    return resources, spec, tuple((BYTES.index(c), 5.0) for c in sorted("=?23*9+-"))


class Interrupted(EngineThread):
    """A thread whose callers are interrupted after each command, as on a busy machine."""

    def _command(self, run: Any) -> Any:
        future = super()._command(run)
        time.sleep(0.005)
        return future


async def grown(w: World, environments: Verifiers, spec: GenerateSpec) -> Any:
    """Grow a wave of trees; return their segments' ids, and the steps that it took."""
    growth = {key: value for key, value in json.loads(spec.to_json()).items() if key != "name"}
    async with w.node(environments=environments) as node:
        opened = await w.open(
            TREES,
            spec.settings,
            TURNS,
            max_new_tokens=spec.max_new_tokens,
            growth=growth,
            wave="w",
            wave_size=TREES,
        )
        trees = await w.grown(opened, 60.0)
        steps = (await node._thread.stats()).steps
    answers = sum(s.kind == Kind.TOOL for tree in trees for s in tree.segments)
    return {tree.spec.group_ordinal: ids(tree) for tree in trees}, steps, answers


@pytest.mark.slow
@pytest.mark.parametrize("engine", [scripted, torch])
async def test_one_seed_grows_one_set_of_trees_whoever_answers(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "_PAUSE_S", 0.01)
    threads = iter((EngineThread, Interrupted, EngineThread))
    monkeypatch.setattr(
        "tests.rollout.world.EngineThread", lambda *args, **more: next(threads)(*args, **more)
    )
    resources, environment, bias = engine(tmp_path / "model")
    spec = GenerateSpec(
        name="turns",
        max_new_tokens=24,
        settings={"starts": 3, "branches": 2, "depth": 2},
        logit_bias=bias,
        environment=environment,
    )
    sessions = ChosenSessions(tmp_path, KEY)
    runs = []
    for number, (verifiers, dies, wait_s) in enumerate(((1, 0, 0), (2, 0, 0.1), (2, 0.3, 0.05))):
        server = NatsServer(tmp_path / f"nats{number}")
        try:
            async with world(server.url, tmp_path / f"state{number}") as w:
                w.recipe = w.recipe.model_copy(update={"model": str(tmp_path / "model")})
                await w.begin(deterministic=True, **resources)
                await w.policy(0)
                made = [Actions(GrpcStore(w.channel), KEY, sessions) for _ in range(verifiers)]
                asked = Verifiers(made, number, dies, wait_s)
                runs.append(await grown(w, asked, spec))
                assert asked.answered >= TREES and (asked.died > 0) == (dies > 0)
        finally:
            server.stop()
    await sessions.close()
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][2] >= 2 * TREES, "paths act, some of them more than once"
