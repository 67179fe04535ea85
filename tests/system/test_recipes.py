"""Each recipe through all five services, on a tiny random model and a user's reward."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan.recipe import Recipe
from banyan.recipe_loader import group_scorers, votes
from banyan.recipe_loader.load import load
from banyan.segment import Kind
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import System, system
from tests.system.tiny import torch_recipe

pytestmark = pytest.mark.slow

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
STEPS = 2
TOKENS = 12  # of a path at most: the model is random and seldom ends by itself
SETTINGS: dict[
    str, dict[str, Any]
] = {  # a random model is never torn between few tokens: branch all the same
    "echo": {
        "width": 8,
        "rise": 0.0,
        "entropy_high": 0.0,
        "confidence": 1.0,
        "floor": 0.0,
        "segment": 6,
    },
    "latr": {"width": 8, "tau_abs": 0.0, "tau_rel": 1.0, "chunk": 2, "ages": [3, 5]},
}
SETTINGS["echo-whole"] = SETTINGS["echo"]
ACTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("treepo", "treepo-eager", "treepo-whole", "tree-grpo"), ("forks",)),
    **dict.fromkeys(("rose", "eptree", "echo", "latr"), ("forks",)),
    "echo-whole": ("forks", "part/majority/majority_ratio"),
    "ttrl": ("part/majority/majority_ratio",),
    "arrol": ("ends_discarded",),
    "ets": ("kv_tokens",),  # its head is cold: all candidates are equal, and go on alone
}
"""Metrics of a step that show that a recipe's method acts, by recipe."""

CONTROL: dict[str, dict[str, Any]] = {  # of a cycle of four groups
    name: {"curriculum_settings": {"references": 2}} for name in ("dots", "dots-replay")
}


def small(file: Path, tiny: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe with another model, task, size and budget, but its own methods."""
    data = load(file).model_dump()
    data["generate"] |= {
        "max_new_tokens": TOKENS,
        "settings": data["generate"]["settings"] | SETTINGS.get(file.stem, {}),
    }
    data["control"] |= {"groups_per_batch": 2} | CONTROL.get(file.stem, {})
    data["optimise"] |= {"checkpoint_every": 1000}
    parts = (
        "name",
        "generate",
        "control",
        "replay",
        "optimise",
        "seed",
        "allow_truncated_sampling",
    )
    kept = {name: data[name] for name in parts}
    return {**tiny, **kept, **filters(load(file), tiny), "budget": {"steps": STEPS, "minutes": 3.0}}


def filters(recipe: Recipe, tiny: dict[str, Any]) -> dict[str, Any]:
    """Return the task's own reward; a vote stays a vote, but on texts: models write few numbers."""
    trains_on_votes = bool(group_scorers.scorers(recipe.filter))
    if not trains_on_votes and recipe.eval.votes is None:
        return {"filter": [], "eval": {"samples": 0}}
    measured: dict[str, Any] = {"samples": 0, "max_rows": 3}
    if recipe.eval.votes is not None:
        measured["votes"] = recipe.eval.votes.model_dump() | {"extract": "text"}
    voting = []
    if trains_on_votes:
        voting = [{"name": recipe.filter[0].name, "settings": {"extract": "text"}}]
        measured["filter"] = [{"name": tiny["task"]["reward"]}]
    return {"filter": voting, "eval": measured, "task": tiny["task"] | {"holdout": 0.2}}


def distinct(database: Path, run_id: str, column: str, where: str = "true") -> set[Any]:
    """Return the values of a column over a run's trees, their segments or their scores."""
    query = (
        f"select distinct {column} from trees"
        " left join segments using (tree_id) left join scores using (tree_id)"
        f" where trees.run_id = ? and {where}"
    )
    return {value for (value,) in sqlite3.connect(database).execute(query, (run_id,))}


def scorers(database: Path, run_id: str, purpose: int) -> set[str]:
    """Return the scorers of the leaves of training (1) or of evaluations (2)."""
    where = f"trees.purpose = {purpose} and scorer is not null"
    return distinct(database, run_id, "scorer", where)


def largest(database: Path, run_id: str, metric: str) -> float:
    """Return the largest value of a metric over a run's steps."""
    query = "select published from policies where run_id = ? and step > 0"
    rows = sqlite3.connect(database).execute(query, (run_id,)).fetchall()
    published = [events_pb2.PolicyPublished.FromString(data) for (data,) in rows]
    return max(policy.metrics[metric] for policy in published)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[System, Any]]:
    """Yield a system that runs one recipe after the other, and the tiny run that each changes."""
    folder = tmp_path_factory.mktemp("recipes")
    tiny = torch_recipe(folder / "recipe")
    tiny["task"]["path"] = str(folder / "recipe" / "rows.jsonl")
    environment = {"PYTHONPATH": str(folder / "recipe")}
    async with system(folder / "state", environment) as running:
        yield running, tiny


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
async def test_a_recipe_runs_end_to_end(made: tuple[System, dict[str, Any]], file: Path) -> None:
    running, tiny = made
    data = small(file, tiny)
    run_id = await running.create(data)
    run = await running.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = running.state / "store.sqlite"
    assert audit(database, run_id, STEPS) == []
    vote, truth = data["filter"], {data["task"]["reward"]}
    assert scorers(database, run_id, 1) == ({vote[0]["name"]} if vote else truth)
    # Only recipes with votes are measured here, by who knows, and those that vote at the end.
    counted = {part.name for part in votes.scorers(load(file))}
    assert scorers(database, run_id, 2) == (truth | counted if vote or counted else set())
    assert bool(counted) == (file.stem in ("arrol", "ets"))
    (decided,) = (
        sqlite3.connect(database)
        .execute("select count(*) from allocations where run_id = ?", (run_id,))
        .fetchone()
    )
    assert (decided >= 2 * STEPS) == (data["control"]["curriculum"] != "uniform")
    reasons = distinct(database, run_id, "trees.reason")
    assert ("REDUNDANT" in reasons) == bool(data["control"]["redundancy"])
    kinds = distinct(database, run_id, "kind", "kind is not null")
    assert kinds == {int(Kind.PROMPT), int(Kind.POLICY)} | (
        {int(Kind.FORCED)} if file.stem in SETTINGS else set()
    )
    for metric in ACTS.get(file.stem, ()):
        assert largest(database, run_id, metric) > 0, f"{metric}: the method does not act"
    if data["generate"]["policy"] == "iid":
        assert largest(database, run_id, "forks") == 0
