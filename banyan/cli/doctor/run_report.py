"""`banyan doctor RUN`: diagnosis of a run from its metrics and trees in the store."""

import json
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from banyan.cli.render.console import emit, out, prose
from banyan.cli.store import reading
from banyan.client import Client
from banyan.doctor import stored_trees
from banyan.doctor.history import evidence_words, history, not_deterministic
from banyan.doctor.rule import Finding
from banyan.doctor.rules import diagnose
from banyan.doctor.series import LEAST, Evidence, Series
from banyan.doctor.tree_rules import RunTrees, told, tree_rules
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data


def examine(run_id: str, state: Path, as_json: bool) -> None:
    """Print the findings of a run. Raises NotFound for an unknown run."""
    with reading(state) as client:
        run = client.run(run_id)
        steps = plain_data.metrics(client.policies(run.run_id))
        progress = client.progress(run.run_id)
        recipe, stats = json.loads(run.recipe_json or "{}"), client.stats(run.run_id)
        trees = _run_trees(client, run, progress.samples)
        evaluations, aside = list(progress.evals), plain_data.progress(progress)["set_aside"]
    known = history(steps, evaluations, run.step)
    findings = diagnose(known, tree_rules(trees))
    unlike = not_deterministic(bool(recipe.get("deterministic")), stats)
    if as_json:
        report = {
            "steps": len(known.steps),
            "findings": [_json(f) for f in findings],
            "set_aside": aside,
            "not_deterministic": unlike,
            "trees": told(trees),
        }
        emit({"run_id": run.run_id, **report}, True)
    else:
        _print(run, known, findings)
        if facts := told(trees):
            prose(facts)
        _print_aside(aside)
        if unlike:
            prose(unlike, style="yellow")


def _run_trees(client: Client, run: rs.Run, samples: rs.SampleCounts) -> RunTrees | None:
    """Return the facts of a run's trees; None if its tree policy is not judged by them."""
    shape = stored_trees.judged_shape(run.recipe_json)
    if shape is None:
        return None
    chosen = stored_trees.newest_filter(run.run_id)
    steps = stored_trees.steps_of(
        client.trees(run.run_id, chosen.limit, states=chosen.states, purpose=chosen.purpose)
    )
    # A filter without ids would be one for all trees.
    whole = client.whole_trees(run.run_id, list(steps)) if steps else ()
    newest = [stored_trees.grown(tree, steps[tree.spec.tree_id]) for tree in whole]
    return RunTrees(shape=shape, newest=newest, shared=stored_trees.shared_share(samples))


def _print_aside(batches: list[dict[str, Any]]) -> None:
    """Print the batches that the run skipped."""
    for batch in batches:
        words = (
            f"batch {batch['batch']} is set aside: {batch['cause']}; look at its trees with "
            "`banyan lineage`"
        )
        prose(words, style="yellow")


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
        prose(text + ended)
        return
    if not findings:
        prose(f"{run_id}: nothing is wrong in the metrics of {len(history.steps)} steps")
        return
    for finding in findings:
        rule = finding.rule
        prose(f"{rule.name} ({rule.module}): {rule.symptom}", style="bold")
        for evidence in finding.evidence:
            prose(f"  {evidence_words(evidence)}", hang="    ")
        for lever in rule.levers:
            _print_lever(f"  try --set '{lever.setting}':", lever.why)


def _print_lever(setting: str, why: str) -> None:
    """Print a setting, which stays in one piece to be copied, and why."""
    if cell_len(f"{setting} {why}") <= out.width:
        return out.print(f"{setting} {why}", markup=False, soft_wrap=True)
    out.print(setting, markup=False, soft_wrap=True)
    prose(f"      {why}", hang="      ")
