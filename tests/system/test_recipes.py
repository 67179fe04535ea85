"""Each recipe through all five services, on a tiny random model and a user's reward."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from banyan.recipe import Recipe
from banyan.recipe_loader import group_scorers
from banyan.recipe_loader.load import load
from banyan.segment import Kind
from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import system
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
    if not group_scorers.scorers(recipe.filter):
        return {"filter": [], "eval": {"samples": 0}}
    vote = {"name": recipe.filter[0].name, "settings": {"extract": "text"}}
    true = {"samples": 0, "max_rows": 3, "filter": [{"name": tiny["task"]["reward"]}]}
    return {"filter": [vote], "eval": true, "task": tiny["task"] | {"holdout": 0.2}}


def scorers(database: Path, purpose: int) -> set[str]:
    """Return the scorers of the leaves of training (1) or of evaluations (2)."""
    joined = (
        "select distinct s.scorer from scores s join trees t on t.tree_id = s.tree_id where"
        " t.purpose = ?"
    )
    return {scorer for (scorer,) in sqlite3.connect(database).execute(joined, (purpose,))}


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
async def test_a_recipe_runs_end_to_end(tmp_path: Path, file: Path) -> None:
    folder = tmp_path / "recipe"
    tiny = torch_recipe(folder)
    tiny["task"]["path"] = str(folder / "rows.jsonl")
    data = small(file, tiny)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(data))
    async with system(tmp_path / "state", {"PYTHONPATH": str(folder)}) as made:
        await made.create(yaml.safe_load((folder / "recipe.yaml").read_text()))
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "state" / "store.sqlite"
    assert audit(database, run.run_id, STEPS) == []
    vote, truth = data["filter"], {data["task"]["reward"]}
    assert scorers(database, 1) == ({vote[0]["name"]} if vote else truth)
    assert scorers(database, 2) == (
        truth if vote else set()
    )  # only a vote is measured here, by who knows
    decided = sqlite3.connect(database).execute("select count(*) from allocations").fetchone()[0]
    assert (decided >= 2 * STEPS) == (data["control"]["curriculum"] != "uniform")
    reasons = {
        reason
        for (reason,) in sqlite3.connect(database).execute("select distinct reason from trees")
    }
    assert ("REDUNDANT" in reasons) == bool(data["control"]["redundancy"])
    kinds = {
        kind for (kind,) in sqlite3.connect(database).execute("select distinct kind from segments")
    }
    assert kinds == {int(Kind.PROMPT), int(Kind.POLICY)} | (
        {int(Kind.FORCED)} if file.stem in SETTINGS else set()
    )
