"""The model card of an exported run: from what it came, how good it is, its lineage. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from banyan.cli.runs import measurements
from banyan.digest import blake
from banyan.progress.run_status import order
from banyan.text.printable import printable
from banyan.text.redaction import redacted
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data

FILE = "README.md"


@dataclass(frozen=True, kw_only=True)
class Card:
    """The facts of a card.

    kind: model, adapter or merged model
    version: of Banyan
    lineage: digest of all policies of the run, in order
    """

    run: rs.Run
    progress: rs.ReadProgressResponse
    kind: str
    version: str
    lineage: str


def lineage_digest(policies: Iterable[rs.StoredPolicy]) -> str:
    """Return the BLAKE2b-256 of the digests of a run's policies, in the order of their steps.

    Whoever has the store recomputes it; a rewind leaves out what it abandoned.
    """
    kept = [p.published.policy for p in policies if not p.abandoned]
    return blake(*(p.digest for p in sorted(kept, key=lambda policy: policy.step))).hex()


def card(facts: Card) -> str:
    """Return the text of README.md, with the front matter that hubs read."""
    recipe = _portable(json.loads(facts.run.recipe_json or "{}"))
    base = str(recipe.get("model", ""))
    front: dict[str, Any] = {
        "library_name": "peft" if facts.kind == "adapter" else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["banyan", "reinforcement-learning", "rollout-trees"],
    }
    if base.count("/") == 1 and not base.startswith(("…", ".")):
        front["base_model"] = base.partition("@")[0]
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {_line(recipe.get('name') or facts.run.run_id)}",
        _line(recipe.get("description") or "A model that was trained on rollout trees."),
        f"Trained from `{_line(base)}` by reinforcement learning on rollout trees, with Banyan"
        f" {facts.version}: {facts.run.step} steps, state {plain_data.run_state(facts.run.state)}.",
        _results(facts.progress),
        _table(("what", "value"), list(_provenance(facts, recipe).items())),
        "## Recipe\n\n```yaml\n" + _yaml(recipe) + "```",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _results(progress: rs.ReadProgressResponse) -> str:
    rows, graded = [], plain_data.graded(progress.evals)
    for message in sorted(progress.evals, key=lambda e: order(e.label)):
        when = message.label.rpartition("-")[0] or message.label
        if when not in ("before", "after"):
            continue
        for name, found in measurements.lines(message):
            figures = (found.reward, "") if graded else (found.share, found.bounds)
            rows.append((f"{when}, {name}", str(found.n), *figures))
    if not rows:
        return ""
    table = _table(("held-out rows", "n", "result", "95 % interval"), rows)
    return f"## Results\n\nOn rows that training never saw:\n\n{table}"


def _provenance(facts: Card, recipe: Mapping[str, Any]) -> dict[str, str]:
    samples, task = facts.progress.samples, recipe.get("task", {})
    return {
        "run": f"`{facts.run.run_id}`",
        "task": f"`{task.get('path') or task.get('name') or ''}`",
        "digest of the rows and of their split": f"`{facts.run.split_digest.hex()}`",
        "digest of the lineage of weights": f"`{facts.lineage}`",
        "sampled tokens": f"{samples.sampled_tokens:,}",
        "tokens that sharing saved": f"{plain_data.saved_tokens(samples):,}",
    }


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_line(cell) for cell in row)} |" for row in lines)


def _portable(value: Any) -> Any:
    """Return plain data in which paths of this machine are their last names."""
    if isinstance(value, Mapping):
        return {key: _portable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_portable(part) for part in value]
    if isinstance(value, str) and value.startswith(("/", "~/")) and "\n" not in value:
        return f"…/{value.rstrip('/').rpartition('/')[2]}"
    return value


def _line(text: Any) -> str:
    """Return a text that stays in its place: one line, and no markup of tables."""
    return " ".join(printable(str(text)).replace("|", "\\|").replace("<", "&lt;").split())


def _yaml(recipe: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(redacted(recipe), sort_keys=False, allow_unicode=True)
    return printable(text).replace("```", "` ` `")
