"""`banyan report`: a run as one HTML file, to keep, to print, or to send by mail."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from banyan.cli import trees
from banyan.cli.doctor.diagnosed import Diagnosis, diagnosed
from banyan.cli.options import DEFAULT_STATE, State
from banyan.cli.render import run_report
from banyan.cli.render.console import out
from banyan.cli.render.taught import taught
from banyan.cli.report.chart import Curve
from banyan.cli.report.document import Picture, Report, Table, document
from banyan.cli.runs import measurements
from banyan.cli.store import reading
from banyan.client import Client
from banyan.doctor.history import evidence_words
from banyan.errors import InvalidInput
from banyan.progress.run_status import moment, order
from banyan.recipe import Recipe
from banyan.render import tree_picture
from banyan.render.tree_svg import drawn
from banyan.runtime.distribution import installed_version
from banyan.text.redaction import redacted
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire import plain_data
from banyan.wire.node_advantages import view_of

_NEWEST = 1000  # trees among which those to show are looked for
_CURVES = {
    "reward": "Reward",
    "entropy": "Entropy, nats",
    "mismatch_kl": "KL between sampling and training, nats",
    "clip_fraction": "Tokens that a bound took",
    "zero_variance_share": "Groups without a spread",
}
_SHARES = ("clip_fraction", "zero_variance_share")


def report(
    run_id: Annotated[
        str, typer.Argument(metavar="RUN", help="Id of the run, or a unique beginning of it.")
    ],
    file: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write, or replace; else RUN.html."
        ),
    ] = None,
    state: State = DEFAULT_STATE,
) -> None:
    """Write a report of a run: one HTML file without scripts that needs nothing else.

    It holds curves, results on held-out rows, trees with the model's words, costs, what doctor
    says, and the configuration without secrets. Rows of the task are not in it.
    """
    if file is not None and file.is_dir():
        raise InvalidInput(f"--output {file} is a folder; name a file")
    with reading(state) as client:
        run = client.run(run_id)
        written = file or Path(f"{run.run_id}.html")
        text = document(gathered(client, run))
    _write(written, text)
    size = len(text.encode()) / 1024
    out.print(f"{written}  {size:.0f} KiB", markup=False, soft_wrap=True)


def _write(file: Path, text: str) -> None:
    """Write a file, or replace one, as a whole; a pipe or a terminal gets the text as it is."""
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")
        return
    target = file.resolve()  # a link stays one
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        aside.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, aside)
        aside.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None
    finally:
        aside.unlink(missing_ok=True)


def gathered(client: Client, run: rs.Run) -> Report:
    """Return all that a run's report shows."""
    progress = client.progress(run.run_id)
    steps = plain_data.metrics(client.policies(run.run_id))
    diagnosis = diagnosed(client, run)
    recipe = json.loads(run.recipe_json or "{}")
    return Report(
        title=str(recipe.get("name") or run.run_id),
        about=str(recipe.get("description") or "a run of Banyan"),
        facts=_facts(client, run, recipe),
        measured=_measured(progress),
        curves=[*_curves(steps), *_accuracy(progress, run.step)],
        pictures=list(_pictures(client, run)),
        costs=_costs(progress, steps),
        findings=[
            (
                f"{finding.rule.name} ({finding.rule.module}): {finding.rule.symptom}",
                [
                    *map(evidence_words, finding.evidence),
                    *(f"try --set '{lever.setting}': {lever.why}" for lever in finding.rule.levers),
                ],
            )
            for finding in diagnosis.findings
        ],
        doctor=_doctor(diagnosis),
        recipe=yaml.safe_dump(redacted(recipe), sort_keys=False, allow_unicode=True),
    )


def _doctor(diagnosis: Diagnosis) -> str:
    steps = len(diagnosis.known.steps)
    sound = "" if diagnosis.findings else f"Nothing is wrong in the metrics of {steps} steps."
    return " ".join(filter(None, (sound, diagnosis.facts, diagnosis.unlike)))


def _facts(client: Client, run: rs.Run, recipe: dict[str, Any]) -> dict[str, str]:
    seconds = client.lived(run.run_id)
    facts = {
        "run": run.run_id,
        "state": plain_data.run_state(run.state) + (f": {run.cause}" if run.cause else ""),
        "steps": str(run.step),
        "time": f"{seconds:.0f} s, from {plain_data.when(run.created_unix_ms)}",
        "model": str(recipe.get("model", "")),
        "tree policy": str(recipe.get("generate", {}).get("policy", "")),
        "advantage and loss": " and ".join(
            str(recipe.get("optimise", {}).get(name, "")) for name in ("advantage", "loss")
        ),
        "split of the task": run.split_digest.hex()[:16],
        "Banyan": installed_version(),
    }
    return {name: value for name, value in facts.items() if value}


def _measured(progress: rs.ReadProgressResponse) -> Table | None:
    rows, graded = [], plain_data.graded(progress.evals)
    for message in sorted(progress.evals, key=lambda e: order(e.label)):
        when = message.label.rpartition("-")[0] or message.label
        for name, found in measurements.lines(message):
            figures = (found.reward, "–") if graded else (found.share, found.bounds)
            rows.append((f"{when}, {name}", str(found.n), *figures))
    columns = ("held-out rows", "n", "result", "95 % interval")
    return Table(columns=columns, rows=rows) if rows else None


def _curves(steps: Sequence[dict[str, Any]]) -> Iterator[Curve]:
    for metric, name in _CURVES.items():
        points = [(s["step"], s[metric]) for s in steps if s.get(metric) is not None]
        yield Curve(name=name, points=points, share=metric in _SHARES)


def _accuracy(progress: rs.ReadProgressResponse, last: int) -> Iterator[Curve]:
    """Yield the greedy accuracy of held-out rows over steps, with its interval; of graded rewards
    their mean."""
    points, bounds, graded = [], [], plain_data.graded(progress.evals)
    for message in progress.evals:
        kind, step = message.label.rpartition("-")[2], moment(message.label, last)
        if kind == "greedy" and message.scored and step is not None:
            right = message.reward_sum if graded else message.correct
            points.append((step, right / message.scored))
            if not graded:
                bounds.append((step, *plain_data.wilson(message.correct, message.scored)))
    name = "Held-out reward, mean" if graded else "Held-out accuracy"
    yield Curve(name=name, points=sorted(points), bounds=sorted(bounds), share=not graded)


def _costs(progress: rs.ReadProgressResponse, steps: Sequence[dict[str, Any]]) -> dict[str, str]:
    samples = progress.samples
    costs = {
        "sampled tokens": f"{samples.sampled_tokens:,}",
        "tokens that sharing saved": f"{plain_data.saved_tokens(samples):,}",
        "sampled, and on no leaf's path": f"{plain_data.unused_tokens(samples):,}",
        "leaves": f"{samples.leaves:,}, of which {samples.unscorable:,} could not be scored",
    }
    for metric in ("prepare_seconds", "train_seconds", "publish_seconds"):
        spent = sum(step.get(metric) or 0.0 for step in steps)
        costs[f"learner: {metric.removesuffix('_seconds')}"] = f"{spent:.1f} s"
    return costs


def _pictures(client: Client, run: rs.Run) -> Iterator[Picture]:
    """Yield the tree with the most different credits, and the one with the best answers."""
    recipe = Recipe.model_validate_json(run.recipe_json, strict=False)
    newest = client.trees(run.run_id, _NEWEST, purpose=tree_pb2.TREE_PURPOSE_TRAIN)
    chosen = taught(newest, lambda summary: run_report.credits_of(client, summary, recipe))
    if chosen is None:
        return
    title, instructive = chosen
    yield _picture(client, recipe, instructive, title)
    scored = [s for s in newest if s.HasField("mean_reward") and s.tree_id != instructive.tree_id]
    if scored:
        best = max(scored, key=lambda summary: summary.mean_reward)
        yield _picture(client, recipe, best, "the best of the newest trees")


def _picture(client: Client, recipe: Recipe, summary: ts.TreeSummary, title: str) -> Picture:
    tree = client.tree(summary.tree_id)
    name = summary.tree_id.hex()[:16]
    about = f"{name}, policy step {summary.policy_step}, mean reward {summary.mean_reward:.3f}"
    try:
        lines = tree_picture.lines(
            view_of(tree), trees.advantages_of(tree, recipe, trees.group_of(client, tree))
        )
        svg = drawn(lines, f"Tree {name}")
    except InvalidInput as error:  # more leaves than a picture holds
        return Picture(title=title, about=about, svg="", missing=str(error))
    return Picture(title=title, about=about, svg=svg)
