"""Documents of runs: a line each, the run whole, its metrics and its evaluations. Pure."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from banyan.progress.run_status import moment
from banyan.text.redaction import redacted
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data

WORKING = (
    rs.RUN_STATE_STARTING,
    rs.RUN_STATE_EVALUATING_BEFORE,
    rs.RUN_STATE_TRAINING,
    rs.RUN_STATE_EVALUATING_AFTER,
)


def finite(value: float | None) -> float | None:
    """Return a number; None, JSON's null, for one that is not finite."""
    return value if value is None or math.isfinite(value) else None


def run(message: rs.Run, live_ms: int) -> dict[str, Any]:
    """Return a run in one line.

    live_ms: time that it has been live, without pauses
    """
    recipe = recipe_json(message)
    task = _part(recipe, "task")
    return {
        "run_id": message.run_id,
        "name": _text(recipe.get("name")) or message.run_id,
        "state": plain_data.run_state(message.state),
        "cause": message.cause or None,
        "step": message.step,
        "steps": _whole(_part(recipe, "budget").get("steps")),
        "created": plain_data.when(message.created_unix_ms),
        "ended": plain_data.when(message.ended_unix_ms),
        "seconds": round(live_ms / 1000, 1),
        "model": _text(redacted(recipe.get("model"))),
        "task": _text(redacted(task.get("path"))) or _text(task.get("name")),
        "policy": _text(_part(recipe, "generate").get("policy")),
        "advantage": _text(_part(recipe, "optimise").get("advantage")),
        "live": message.state in WORKING,
    }


def whole(
    answer: rs.ReadRunResponse, members: Sequence[rs.Member], left_s: float | None
) -> dict[str, Any]:
    """Return a run with its progress, its recipe without secrets, and its members.

    answer: with progress
    left_s: seconds that it still takes; None while nothing tells them
    """
    return {
        "run": run(answer.run, answer.live_ms),
        "progress": plain_data.progress(answer.progress),
        "recipe": redacted(recipe_json(answer.run)),
        "members": [plain_data.member(member) for member in members],
        "left_s": left_s,
        "saved_share": saved_share(answer.progress.samples),
    }


def saved_share(samples: rs.SampleCounts) -> float | None:
    """Return the share of the tokens of independent paths that sharing saved; None without any."""
    paths = samples.path_tokens + samples.prompt_path_tokens
    return plain_data.saved_tokens(samples) / paths if paths else None


def evaluation(message: rs.EvalProgress, last: int) -> dict[str, Any]:
    """Return an evaluation with the step whose policy it measures; `last` is the run's newest."""
    return plain_data.evaluation(message) | {"step": moment(message.label, last)}


def metrics(policies: Iterable[rs.StoredPolicy], after: int = -1) -> list[dict[str, Any]]:
    """Return the metrics of the steps after a step, in order."""
    return [step for step in plain_data.metrics(policies) if step["step"] > after]


def recipe_json(message: rs.Run) -> dict[str, Any]:
    """Return a run's recipe as it is stored; empty where it cannot be read."""
    try:
        recipe = json.loads(message.recipe_json or "{}")
    except ValueError:
        return {}
    return recipe if isinstance(recipe, dict) else {}


def _part(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    part = recipe.get(name)
    return part if isinstance(part, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
