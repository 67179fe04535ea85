"""Cells of the experiment `trees` run in one process: they make the policies that services make."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file

from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2 as rs
from bench.trees import policy
from bench.trees.arms import ARMS, Task
from bench.trees.process import InProcess
from services.chassis.weights.file import HEAD
from tests.faults.harness import System, system, tiny_model

pytestmark = pytest.mark.slow
STEPS = 2
ASKED = Task(operations=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model(tmp_path_factory.mktemp("model"), vocab=len(policy.LETTERS))
    policy.tokenizer_in(folder)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """Start services for all runs, one after the other."""
    async with system(tmp_path_factory.mktemp("state")) as started:
        yield started


PAID_BY_LENGTH = {"name": "length", "settings": {"least": 15, "most": 16, "buffer": 8}}
CHOSEN_AND_REPLAYED: dict[str, Any] = {
    "control": {
        "groups_per_batch": 4,
        "curriculum": "dots",
        "curriculum_settings": {"references": 2, "mu": 1},
    },
    "replay": {"fraction": 0.5},
    "optimise": {"advantage": "grpo", "learning_rate": 1e-2, "loss": "decoupled"},
}
VOTED: dict[str, Any] = {
    "generate": {
        "policy": "echo",
        "settings": {"width": 8, "chains": 2, "segment": 4, "min_depth": 1},
        "max_new_tokens": ASKED.tokens + 1,
    },
    "filter": [{"name": "majority", "settings": {"extract": "text"}}],
    "optimise": {"advantage": "echo", "learning_rate": 1e-2, "loss": "echo-clip", "epochs": 2},
    "eval": {"samples": 0, "max_rows": 2, "filter": [PAID_BY_LENGTH]},
}
PRUNED: dict[str, Any] = {
    "generate": {
        "policy": "arrol",
        "settings": {"width": 8, "detect": 6},
        "max_new_tokens": ASKED.tokens + 1,
    },
    "optimise": {
        "advantage": "grpo",
        "learning_rate": 1e-2,
        "loss": "reinforce",
        "head": {"cold_steps": 1},
    },
}


def _recipe(name: str, model: Path, changes: dict[str, Any]) -> Recipe:
    """Return an arm's recipe, paid by length: a random model is never right."""
    arm = ARMS[name]
    parts: dict[str, Any] = {
        "name": name,
        "model": str(model),
        "task": {"name": "chains-mod", "size": 40, "config": {"operations": 3}, "holdout": 0.2},
        "generate": {"max_new_tokens": ASKED.tokens + 1, **arm.generate(ASKED, 8)},
        "filter": [PAID_BY_LENGTH],
        "control": {"groups_per_batch": 4},
        "optimise": {"advantage": arm.advantage, "learning_rate": 1e-2, "loss": "reinforce"},
        "budget": {"steps": STEPS},
        "eval": {"samples": 0, "max_rows": 2},
        "resources": {"dtype": "float32", "threads": 1},
        "seed": 5,
        "deterministic": True,
    }
    return Recipe.model_validate(parts | changes)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("iid-dr-grpo", {}, id="iid-dr-grpo"),
        pytest.param("forks-rose", {}, id="forks-rose"),
        pytest.param("tree-grpo", {}, id="tree-grpo"),
        pytest.param("iid-grpo", CHOSEN_AND_REPLAYED, id="chosen and replayed"),
        pytest.param("iid-grpo", VOTED, id="voted"),
        pytest.param("iid-grpo", PRUNED, id="pruned by a head"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_the_services_make_the_same_policy(
    name: str, changes: dict[str, Any], model: Path, running: System
) -> None:
    recipe = _recipe(name, model, changes)
    run_id = await running.create(recipe.model_dump())
    assert (await running.finish()).state == rs.RUN_STATE_SUCCEEDED
    last = max(running.state.glob(f"runs/{run_id}/checkpoints/*/model.safetensors"))
    process = InProcess(recipe, run_id)
    before = {name: weight.clone() for name, weight in process.weights().items()}
    for number in range(STEPS):
        process.step(number)
    after, theirs = process.weights(), load_file(last)
    theirs = {name: weight for name, weight in theirs.items() if not name.startswith(HEAD)}
    assert after.keys() == theirs.keys()
    assert all(torch.equal(after[name], theirs[name]) for name in after)
    assert not any(torch.equal(after[name], before[name]) for name in after)
    assert process.update is not None
    replayed = process.update.metrics().get("replay_share", 0.0)
    assert bool(replayed) == (recipe.replay is not None)
