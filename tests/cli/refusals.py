"""Recipe of the quick start, recipes with a reward of one's own, and refusals of commands."""

from pathlib import Path
from typing import Any

import yaml

from tests.cli.command import ROOT, Said

ARITHMETIC = ROOT / "recipes" / "arithmetic.yaml"


def refused(result: Said[str], *words: str) -> None:
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr and result.stderr.count("error:") == 1
    message = " ".join(result.stderr.split())
    for word in words:
        assert word in message, message


def own_reward(folder: Path, module: str, reward: str = "own_rewards:f", **more: Any) -> Path:
    (folder / "own_rewards.py").write_text(module)
    (folder / "rows.jsonl").write_text('{"prompt": "1 + 1", "answer": 2}\n')
    task = {"name": "file", "path": "rows.jsonl", "reward": reward}
    recipe = {
        "name": "x",
        "model": "m/m",
        "task": task,
        "resources": {"engine": "scripted"},
        **more,
    }
    (folder / "r.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "r.yaml"
