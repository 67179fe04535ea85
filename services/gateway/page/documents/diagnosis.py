"""Document of a run's diagnosis: findings as sentences, with remedies and links. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from banyan.doctor.history import evidence_words, history, not_deterministic
from banyan.doctor.rule import Finding
from banyan.doctor.rules import diagnose
from banyan.doctor.series import LEAST
from banyan.doctor.stored_trees import grown, judged_shape, newest_filter, shared_share, steps_of
from banyan.doctor.tree_rules import RunTrees, told, tree_rules
from banyan.payoff.shape import Shape
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.wire import plain_data
from services.gateway.page.documents.runs import finite, recipe_json

__all__ = ["document", "health", "newest_filter", "revision", "shape_of", "steps_of"]
LINK = "docs/metrics.md#what-banyan-doctor-run-looks-for"
_PACE_STEPS = 5
_URGENT = ("nothing-applied", "not-finite", "reward-collapse", "reward-hacking", "held-out-falls")


def shape_of(run: rs.Run) -> Shape | None:
    """Return the shape of a run's trees; None if its tree policy is not judged by them."""
    return judged_shape(run.recipe_json)


def revision(answer: rs.ReadRunResponse) -> str:
    """Return a text that changes when there is more to diagnose: steps, evaluations, batches."""
    progress = answer.progress
    known = rs.ReadProgressResponse(
        step=answer.run.step,
        batches=progress.batches,
        evals=progress.evals,
        set_aside=progress.set_aside,
    )
    return known.SerializeToString(deterministic=True).hex()


def document(
    answer: rs.ReadRunResponse,
    policies: Iterable[rs.StoredPolicy],
    stats: Mapping[str, int],
    *,
    shape: Shape | None,
    trees: Sequence[tree_pb2.Tree],
    steps: Mapping[bytes, int],
) -> dict[str, Any]:
    """Return the diagnosis.

    trees: newest whole training trees; `steps` their policy steps by id
    """
    known = history(plain_data.metrics(policies), answer.progress.evals, answer.run.step)
    of_trees = None
    if shape is not None:
        newest = [grown(tree, steps[tree.spec.tree_id]) for tree in trees]
        shared = shared_share(answer.progress.samples)
        of_trees = RunTrees(shape=shape, newest=newest, shared=shared)
    findings = [_finding(found) for found in diagnose(known, tree_rules(of_trees))]
    findings += [_set_aside(batch) for batch in answer.progress.set_aside]
    deterministic = bool(recipe_json(answer.run).get("deterministic"))
    if unlike := not_deterministic(deterministic, stats):
        findings.append(_plain("not-deterministic", "warning", unlike))
    findings.sort(key=lambda found: found["severity"] != "error")  # else in the order of the rules
    few = len(known.steps) < LEAST
    return {
        "findings": findings,
        "facts": told(of_trees),
        "steps": len(known.steps),
        "note": f"{len(known.steps)} steps say nothing yet; {LEAST} are needed" if few else None,
    }


def health(found: Mapping[str, Any], policies: Sequence[rs.StoredPolicy]) -> dict[str, Any]:
    """Return the pace of a run and the most urgent finding of its diagnosis.

    found: the diagnosis
    policies: oldest first
    """
    findings = found["findings"]
    newest = max((stored.stored_unix_ms for stored in policies), default=0)
    return {
        "step_seconds": _step_seconds(policies),
        "newest_step": plain_data.when(newest),
        "finding": findings[0] if findings else None,
        "findings": len(findings),
    }


def _step_seconds(policies: Sequence[rs.StoredPolicy]) -> float | None:
    """Return the mean seconds of the newest steps that one learner made one after the other.

    A pause lies between two learners, and repetitions by a restarted one, without metrics, are
    faster than steps.
    """
    times: list[int] = []
    later: rs.StoredPolicy | None = None
    for stored in reversed(policies[-_PACE_STEPS - 1 :]):
        policy = stored.published.policy
        if later is not None:
            after = later.published.policy
            if (policy.learner_epoch, policy.step + 1) != (after.learner_epoch, after.step):
                break
            if later.published.metrics:
                times.append(later.stored_unix_ms - stored.stored_unix_ms)
        later = stored
    return round(sum(times) / len(times) / 1000, 3) if times else None


def _finding(found: Finding) -> dict[str, Any]:
    rule = found.rule
    evidence = "; ".join(evidence_words(e) for e in found.evidence)
    remedies = [f"--set '{lever.setting}': {lever.why}" for lever in rule.levers]
    return {
        "rule": rule.name,
        "module": rule.module,
        "severity": "error" if rule.name in _URGENT else "warning",
        "step": max((e.last for e in found.evidence), default=None),
        "sentence": f"{rule.symptom} ({evidence})",
        "remedy": f"try {'; or '.join(remedies)}" if remedies else None,
        "link": LINK,
        "evidence": [
            {
                "metric": e.metric,
                "value": finite(e.value),
                "was": finite(e.was),
                "limit": finite(e.limit),
                "steps": [e.first, e.last],
            }
            for e in found.evidence
        ],
        "levers": [
            {"key": lever.key, "set": lever.setting, "why": lever.why} for lever in rule.levers
        ],
    }


def _set_aside(batch: rs.SetAside) -> dict[str, Any]:
    words = f"batch {batch.ordinal} is set aside: {batch.cause}"
    return _plain("batch-set-aside", "error", words, "look at its trees with `banyan lineage`")


def _plain(rule: str, severity: str, words: str, remedy: str | None = None) -> dict[str, Any]:
    return {
        "rule": rule,
        "module": None,
        "severity": severity,
        "step": None,
        "sentence": words,
        "remedy": remedy,
        "link": "docs/operations.md",
        "evidence": [],
        "levers": [],
    }
