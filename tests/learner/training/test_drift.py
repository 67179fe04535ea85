"""The drift of a run: against single paths, bounded, and the same after a restart."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from banyan.credit.estimate import ScoredTree
from banyan.view import TreeView
from services.learner.model.load import forward, prepare
from services.learner.training import drift
from tests.learner.flat_reference import gathered, sequences
from tests.learner.in_memory_learner import MemoryStore, Rig, grown, recipe, straight


def scored(view: TreeView) -> ScoredTree:
    return ScoredTree(view.tree, view.leaves_L, dict.fromkeys(view.leaves_L, 0.0))


def test_it_is_k3_on_the_tokens_that_the_start_sampled(
    tiny_llama: Callable[..., Any], forest: Any
) -> None:
    """Tokens on two paths count twice; prompts and answers of tools do not."""
    views = [forest.random(np.random.default_rng(seed), 8) for seed in (4, 5)]
    model = tiny_llama(1)
    rows = drift.probe(map(scored, views), 30)
    model.set_attn_implementation("sdpa")
    terms = []
    for view in views:
        for sequence in sequences([view], [np.zeros(len(view.leaves_L))]):
            tokens = gathered(model, sequence)
            if tokens is not None:
                d = (tokens.logp_P_T.detach() - tokens.behaviour_P_T)[tokens.mask_P_T].clamp(
                    -20, 20
                )
                terms += (d.exp() - 1 - d).tolist()
    packed = prepare(model)
    assert len(rows) > 1
    assert drift.measured(rows, lambda row: forward(packed, row)) == pytest.approx(
        np.mean(terms), rel=1e-9
    )


def test_a_probe_is_bounded_and_never_empty(forest: Any) -> None:
    many = [
        scored(forest.flat([0.0] * 8, tree_id=bytes([n]) * 32, lengths=[20] * 8)) for n in range(20)
    ]
    rows = drift.probe(many, 4096)
    assert drift.TOKENS - 8 * 20 < sum(len(row.token_U) for row in rows) <= drift.TOKENS
    long = drift.probe([scored(forest.flat([0.0], lengths=[3 * drift.TOKENS]))] * 2, 4096)
    assert sum(len(row.token_U) for row in long) == 3 * drift.TOKENS + 3, (
        "a single path is taken whole"
    )
    assert sum(len(row.token_U) for row in drift.probe(many, 0)) <= drift.TOKENS, "paths one by one"
    assert drift.probe([], 4096) == [] and drift.measured([], forward) is None


@pytest.mark.parametrize(
    ("step", "last", "is_due"), [(0, 9, False), (4, 9, False), (5, 9, True), (9, 9, True)]
)
def test_it_is_measured_every_few_steps_and_at_the_end(step: int, last: int, is_due: bool) -> None:
    assert drift.due(step, last) is is_due


async def test_a_run_measures_its_drift_without_a_kl_in_its_loss(
    tmp_path: Path, tiny_folder: Path
) -> None:
    rig = await straight(tmp_path, tiny_folder, steps=6)
    by_step = {p.policy.step: p.metrics for p in rig.store.puts if p.metrics}
    assert sorted(step for step, metrics in by_step.items() if "start_kl" in metrics) == [5, 6]
    assert all(
        math.isfinite(by_step[step]["start_kl"]) and by_step[step]["start_kl"] > 0
        for step in (5, 6)
    )
    weights = [t.double() for t in rig.final().values()]
    rms = math.sqrt(sum(float(t.pow(2).sum()) for t in weights) / sum(t.numel() for t in weights))
    assert by_step[6]["relative_rate"] == pytest.approx(by_step[6]["learning_rate"] / rms, rel=1e-5)


async def test_a_run_of_an_adapter_measures_its_relative_rate(
    tmp_path: Path, tiny_folder: Path
) -> None:
    """In the doctor's terms: 1e-2 is far too fast for an adapter, and a hundredth of it is not."""
    metrics = {}
    for rate in (1e-2, 1e-4):
        rig = await straight(
            tmp_path / str(rate), tiny_folder, steps=1, lora={"rank": 2}, learning_rate=rate
        )
        metrics[rate] = rig.store.puts[-1].metrics
    assert metrics[1e-4]["relative_rate"] == pytest.approx(
        metrics[1e-2]["relative_rate"] / 100, rel=0.01
    )
    assert (
        metrics[1e-4]["relative_rate"] < 0.003 < metrics[1e-2]["relative_rate"]
        and "start_kl" in metrics[1e-2]
    )


async def test_a_learner_that_was_killed_measures_the_same(
    tmp_path: Path, tiny_folder: Path
) -> None:
    undisturbed = await straight(tmp_path, tiny_folder, steps=6)
    rig = Rig(tmp_path / "killed", tiny_folder, MemoryStore(grown), recipe(6))
    rig.store.die_after_commit = 4
    with pytest.raises(ConnectionAbortedError):
        await rig.run()
    rig.store.die_after_commit = -1
    await rig.run()
    ends = [store.live[-1].metrics["start_kl"] for store in (undisturbed.store, rig.store)]
    assert ends[0] == ends[1]
