"""`banyan doctor RUN`: diagnosis of a run from its metrics and trees in the store."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.text import Text

from banyan.cli.doctor.rule import Finding
from banyan.cli.doctor.rules import diagnose
from banyan.cli.doctor.series import LEAST, Evidence, Measured, Series, series
from banyan.cli.doctor.stored_trees import run_trees
from banyan.cli.doctor.tree_rules import told, tree_rules
from banyan.cli.render import plain_data
from banyan.cli.render.console import emit, out
from banyan.cli.render.run_report import not_deterministic
from banyan.cli.store import reading
from banyan.v1 import runstore_service_pb2 as rs


def examine(run_id: str, state: Path, as_json: bool) -> None:
    """Print the findings of a run. Raises NotFound for an unknown run."""
    with reading(state) as client:
        run = client.run(run_id)
        steps = plain_data.metrics(client.policies(run.run_id))
        progress = client.progress(run.run_id)
        recipe, stats = json.loads(run.recipe_json or "{}"), client.stats(run.run_id)
        trees = run_trees(client, run, progress.samples)
        evaluations, aside = list(progress.evals), plain_data.progress(progress)["set_aside"]
    history = series(((s["step"], _finite(s)) for s in steps), _held_out(evaluations, run.step))
    findings = diagnose(history, tree_rules(trees))
    unlike = not_deterministic(bool(recipe.get("deterministic")), stats)
    if as_json:
        report = {
            "steps": len(history.steps),
            "findings": [_json(f) for f in findings],
            "set_aside": aside,
            "not_deterministic": unlike,
            "trees": told(trees),
        }
        emit({"run_id": run.run_id, **report}, True)
    else:
        _print(run, history, findings)
        if facts := told(trees):
            out.print(facts, markup=False, soft_wrap=True)
        _print_aside(aside)
        if unlike:
            out.print(Text(unlike, style="yellow"), soft_wrap=True)


def _print_aside(batches: list[dict[str, Any]]) -> None:
    """Print the batches that the run skipped."""
    for batch in batches:
        words = (
            f"batch {batch['batch']} is set aside: {batch['cause']}; look at its trees with "
            "`banyan lineage`"
        )
        out.print(Text(words, style="yellow"), soft_wrap=True)


def _finite(step: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in step.items() if value is not None}


def _held_out(evaluations: Iterable[rs.EvalProgress], last: int) -> list[Measured]:
    """Return the finished greedy evaluations, by step."""
    measured = []
    for message in evaluations:
        when, _, kind = message.label.rpartition("-")
        if kind == "greedy" and message.done >= message.groups and message.scored:
            step = {"before": 0, "after": last}.get(when)
            number = int(when.removeprefix("step-")) if step is None else step
            measured.append(Measured(number, message.reward_sum / message.scored, message.scored))
    return measured


def _json(finding: Finding) -> dict[str, Any]:
    rule = finding.rule
    return {
        "name": rule.name,
        "symptom": rule.symptom,
        "module": rule.module,
        "evidence": [_told(e) for e in finding.evidence],
        "levers": [
            {"key": lever.key, "set": lever.setting, "why": lever.why} for lever in rule.levers
        ],
    }


def _told(evidence: Evidence) -> dict[str, Any]:
    facts = {
        "metric": evidence.metric,
        "value": evidence.value,
        "steps": [evidence.first, evidence.last],
    }
    return facts | {
        k: v for k, v in (("was", evidence.was), ("limit", evidence.limit)) if v is not None
    }


def _print(run: rs.Run, history: Series, findings: list[Finding]) -> None:
    run_id = run.run_id
    if len(history.steps) < LEAST:
        text = f"{run_id}: {len(history.steps)} steps say nothing; {LEAST} are needed"
        ended = (
            f"; it {rs.RunState.Name(run.state).removeprefix('RUN_STATE_')}: {run.cause}"
            if run.cause
            else ""
        )
        out.print(text + ended, markup=False, soft_wrap=True)
        return
    if not findings:
        out.print(
            f"{run_id}: nothing is wrong in the metrics of {len(history.steps)} steps",
            markup=False,
            soft_wrap=True,
        )
        return
    for finding in findings:
        rule = finding.rule
        out.print(
            f"{rule.name} ({rule.module}): {rule.symptom}",
            style="bold",
            markup=False,
            soft_wrap=True,
        )
        for evidence in finding.evidence:
            out.print(f"  {_words(evidence)}", markup=False, soft_wrap=True)
        for lever in rule.levers:
            out.print(f"  try --set '{lever.setting}': {lever.why}", markup=False, soft_wrap=True)


def _words(evidence: Evidence) -> str:
    was = f", was {evidence.was:.4g}" if evidence.was is not None else ""
    limit = f", limit {evidence.limit:.4g}" if evidence.limit is not None else ""
    steps = f"steps {evidence.first} to {evidence.last}"
    return f"{evidence.metric} {evidence.value:.4g}{was}{limit}, {steps}"
