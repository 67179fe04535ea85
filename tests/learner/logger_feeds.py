"""Steps of a learner for the tests of loggers, and the records that were written of them."""

import json
from pathlib import Path
from typing import Any

from banyan.loggers import Logger
from services.learner.loggers.feed import Feeds
from tests.learner.in_memory_learner import RUN

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "recipes" / "quickstart.yaml").read_text()
RECIPE = {"name": "tiny", "control": {"groups_per_batch": 2}}


def fed(folder: Path, name: str, logger: Logger, steps: range, *labels: str) -> Feeds:
    """Feed a logger with steps, and with evaluations at the last of them."""
    feeds = Feeds(RUN, RECIPE, {name: logger}, folder / "loggers")
    for step in steps:
        feeds.step(step, {"reward": step / 10, "loss": float("nan")})
    for label in labels:
        feeds.evaluation(label, steps[-1], {"eval_greedy_reward": 0.5})
    feeds.close()
    assert [feed.lost for feed in feeds.feeds] == [0]
    return feeds


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the records that the logger `jsonl` wrote."""
    return [
        json.loads(line)
        for line in (folder / "loggers" / "jsonl" / "metrics.jsonl").read_text().splitlines()
    ]
