"""`banyan doctor RUN`: diagnosis of a run from its metrics and trees in the store."""

from pathlib import Path
from typing import Any

from rich.cells import cell_len

from banyan.cli.doctor.diagnosed import diagnosed
from banyan.cli.render.console import emit, out, prose
from banyan.cli.store import reading
from banyan.doctor.history import evidence_words
from banyan.doctor.rule import Finding
from banyan.doctor.series import LEAST, Evidence, Series
from banyan.v1 import runstore_service_pb2 as rs


def examine(run_id: str, state: Path, as_json: bool) -> None:
    """Print the findings of a run. Raises NotFound for an unknown run."""
    with reading(state) as client:
        run = client.run(run_id)
        found = diagnosed(client, run)
    if as_json:
        report = {
            "steps": len(found.known.steps),
            "findings": [_json(f) for f in found.findings],
            "set_aside": found.aside,
            "not_deterministic": found.unlike,
            "trees": found.facts,
        }
        emit({"run_id": run.run_id, **report}, True)
    else:
        _print(run, found.known, found.findings)
        if found.facts:
            prose(found.facts)
        _print_aside(found.aside)
        if found.unlike:
            prose(found.unlike, style="yellow")


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
