"""Runs with a planted fault each, small enough to run beside each other in one system."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from services.supervisor.child import Child
from services.supervisor.fleet import ProcessCommands
from tests.faults.harness import recipe, tiny_model
from tests.system.tiny import byte_tokenizer

REWARDS = """
import time

def constant(completion, **row):
    return 0.5

def wrong(completion, left, right, **row):
    return float(completion.strip() != str(left + right))

def right(completion, left, right, **row):
    return float(completion.strip() == str(left + right))

def slow(completion, left, right, **row):
    time.sleep(3.0)
    return float(completion.strip() == str(left + right))

def varied(completion, **row):
    return len(set(completion)) / max(1, len(completion))
"""
NAMED = {
    "constant": ("", "nothing-applied"),
    "paid-for-wrong": ("BanyanHeldOutFell", "reward-hacking"),
    "slow-sandbox": ("BanyanScoresSlow", ""),
    "stale-node": ("BanyanNodeStale", ""),
    "collapse": ("BanyanFarFromStart", "far-from-start"),
}
"""The alert that fires on each fault, and the rule of `banyan doctor` that names it."""
STALE_NODE = Path(__file__).with_name("stale_node.py")
STALE_RUN = "stale-node"


def recipes(folder: Path) -> dict[str, dict[str, Any]]:
    """Write what the runs need; return their recipes by name."""
    folder.joinpath("planted_rewards.py").write_text(REWARDS)
    rows = folder / "rows.jsonl"
    sums = [(left, right) for left in range(1, 9) for right in range(1, 8)]
    rows.write_text(
        "".join(
            json.dumps({"prompt": f"{left} + {right} = ?", "left": left, "right": right}) + "\n"
            for left, right in sums
        )
    )
    model = tiny_model(folder / "model", vocab=257)
    byte_tokenizer(model)

    def run(name: str, reward: str, **changes: Any) -> dict[str, Any]:
        task = {"name": "file", "path": str(rows), "reward": f"planted_rewards:{reward}"}
        return recipe(model, name=name, task={**task, "holdout": 0.2}, **changes)

    falling = {"engine": "scripted", "engine_settings": {"accuracy": 1.0, "gain": -0.06}}
    torch = {"engine": "torch", "threads": 1, "kv_tokens": 4096, "max_branches": 32}
    return {
        "constant": run("constant", "constant", budget={"steps": 4}),
        "paid-for-wrong": run(
            "paid-for-wrong",
            "wrong",
            eval={"samples": 0, "every": 5, "filter": [{"name": "planted_rewards:right"}]},
            resources=falling,
            budget={"steps": 400},
        ),
        "slow-sandbox": run("slow-sandbox", "slow", eval={"samples": 0, "max_rows": 6}),
        STALE_RUN: run(
            STALE_RUN,
            "right",
            control={"groups_per_batch": 4, "max_staleness": 8},
            resources={
                "engine": "scripted",
                "engine_settings": {"accuracy": 0.5, "latency_s": 0.01},
                "rollout_nodes": 2,
            },
            budget={"steps": 200},
        ),
        "collapse": run(
            "collapse",
            "varied",
            generate={"policy": "iid", "settings": {"width": 4}, "max_new_tokens": 16},
            optimise={"learning_rate": 0.5, "checkpoint_every": 100, "clip_norm": 1e6},
            resources={**torch, "dtype": "float32"},
            budget={"steps": 20},
        ),
    }


def plant_stale_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the second node of the run STALE_RUN be a stale one."""
    make = ProcessCommands.worker

    def worker(
        commands: ProcessCommands, run_id: str, service: str, *more: Any, **named: Any
    ) -> Child:
        child = make(commands, run_id, service, *more, **named)
        replica = child.replica
        if run_id.startswith(STALE_RUN) and service == "rollout" and replica == 1:
            child.command = [sys.executable, "-P", str(STALE_NODE)]
        return child

    monkeypatch.setattr(ProcessCommands, "worker", worker)
