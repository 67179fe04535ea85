"""Diagnosis of a stored run: what is read for it, and what the rules say."""

import json
from dataclasses import dataclass
from typing import Any

from banyan.client import Client
from banyan.doctor import stored_trees
from banyan.doctor.history import history, not_deterministic
from banyan.doctor.rule import Finding
from banyan.doctor.rules import diagnose
from banyan.doctor.series import Series
from banyan.doctor.tree_rules import RunTrees, told, tree_rules
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Diagnosis of a run.

    known: its metrics, step by step
    findings: rules that hold
    facts: what its trees share, in words; empty where they are not judged
    aside: batches that it skipped
    unlike: what of a deterministic run no seed repeats; empty without any
    """

    known: Series
    findings: list[Finding]
    facts: str
    aside: list[dict[str, Any]]
    unlike: str


def diagnosed(client: Client, run: rs.Run) -> Diagnosis:
    """Return the diagnosis of a run."""
    steps = plain_data.metrics(client.policies(run.run_id))
    progress = client.progress(run.run_id)
    recipe = json.loads(run.recipe_json or "{}")
    trees = _run_trees(client, run, progress.samples)
    known = history(steps, list(progress.evals), run.step)
    return Diagnosis(
        known=known,
        findings=diagnose(known, tree_rules(trees)),
        facts=told(trees),
        aside=plain_data.progress(progress)["set_aside"],
        unlike=not_deterministic(bool(recipe.get("deterministic")), client.stats(run.run_id)),
    )


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
