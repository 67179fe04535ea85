"""An optimizer step: same bits for the same batch, in any number of sequences; NaN is skipped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput, NotReady
from banyan.recipe import Optimise
from services.learner.model.load import load, prepare, refuse_untrainable
from services.learner.training.trainer import Trainer, settle
from tests.learner.rows import rows_of


@pytest.fixture(autouse=True)
def _settled() -> None:
    settle(1)


def trained(
    make: Callable[..., Any], forest: Any, dtype: torch.dtype, steps: int = 3, budget: int = 400
) -> dict[str, torch.Tensor]:
    trainer = Trainer(
        prepare(make(0, torch.float32)), Optimise(learning_rate=1e-2, warmup_steps=2), dtype
    )
    for step in range(steps):
        trainer.step(rows_of(forest, step, budget), step)
    return {n: t.clone() for n, t in trainer.masters.exact().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_batches_give_the_same_bits(
    tiny_llama: Callable[..., Any], forest: Any, dtype: torch.dtype
) -> None:
    one, two = (trained(tiny_llama, forest, dtype) for _ in range(2))
    assert all(torch.equal(one[n], two[n]) for n in one)
    base = dict(tiny_llama(0, torch.float32).named_parameters())
    assert not torch.equal(one["model.embed_tokens.weight"], base["model.embed_tokens.weight"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_sequences_changes_only_rounding(
    tiny_llama: Callable[..., Any], forest: Any, dtype: torch.dtype
) -> None:
    gradients = []
    for budget in (16, 4000):
        trainer = Trainer(
            prepare(tiny_llama(0, torch.float32)),
            Optimise(clip_norm=1e9, learning_rate=1e-9),
            dtype,
        )
        rows = rows_of(forest, 1, budget)
        assert (len(rows) > 3) is (budget == 16)
        trainer.step(rows, 0)
        gradients.append(torch.cat([g.flatten() for g in trainer.masters.gradients()]))
    error = float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
    assert error < (1e-5 if dtype is torch.float32 else 0.05)


def test_epsilon_keeps_weights_whose_gradient_is_small(
    tiny_llama: Callable[..., Any], forest: Any
) -> None:
    """The first step of AdamW is −rate · g / (|g| + ε), whatever the betas."""
    for epsilon in (1e-8, 1e-2):
        trainer = Trainer(
            prepare(tiny_llama(0, torch.float32)), Optimise(learning_rate=1e-3, epsilon=epsilon)
        )
        before = [w.detach().double().clone() for w in trainer.masters.weights]
        trainer.step(rows_of(forest, 1), 0)
        for old, new, g in zip(
            before, trainer.masters.weights, trainer.masters.gradients(), strict=True
        ):
            g = g.double()
            moved = -1e-3 * g / (g.abs() + epsilon)
            torch.testing.assert_close(new.detach().double() - old, moved, atol=2e-7, rtol=1e-3)


def test_bfloat16_keeps_float32_masters_and_the_model_gets_their_rounding(
    tiny_llama: Callable[..., Any], forest: Any
) -> None:
    model = prepare(tiny_llama(0, torch.float32))
    trainer = Trainer(model, Optimise(learning_rate=1e-3), torch.bfloat16)
    trainer.step(rows_of(forest, 0), 0)
    for name, parameter in model.named_parameters():
        master = trainer.masters.exact()[name]
        assert (parameter.dtype, master.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(parameter, master.bfloat16())
    assert all(b.dtype is torch.float32 for b in model.buffers())


def test_warm_up_and_clipping(tiny_llama: Callable[..., Any], forest: Any) -> None:
    trainer = Trainer(
        prepare(tiny_llama(0, torch.float32)),
        Optimise(learning_rate=0.4, warmup_steps=4, clip_norm=0.01),
    )
    rates = [trainer.step(rows_of(forest, 0), step).learning_rate for step in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    norms = [float(g.norm()) for g in trainer.masters.gradients()]
    assert sum(n * n for n in norms) ** 0.5 == pytest.approx(0.01, rel=1e-4)


def test_a_gradient_that_is_not_finite_is_skipped_and_reported(
    tiny_llama: Callable[..., Any], forest: Any
) -> None:
    trainer = Trainer(prepare(tiny_llama(0, torch.float32)), Optimise(learning_rate=1e-2))
    before = {n: t.clone() for n, t in trainer.masters.exact().items()}
    rows = rows_of(forest, 0)
    rows[0].advantage_P_T[0, 0] = np.nan
    report = trainer.step(rows, 0)
    assert (report.applied, report.finite) == (False, False)
    assert all(torch.equal(before[n], t) for n, t in trainer.masters.exact().items())
    assert trainer.step(rows_of(forest, 1), 1).applied


def test_nothing_to_learn_from_is_no_step(tiny_llama: Callable[..., Any]) -> None:
    trainer = Trainer(prepare(tiny_llama(0, torch.float32)), Optimise())
    report = trainer.step([], 0)
    assert (report.applied, report.finite) == (False, True)


def test_on_policy_data_has_no_mismatch_and_stale_data_is_measured(
    tiny_llama: Callable[..., Any], forest: Any
) -> None:
    from services.learner.model.load import forward

    model = prepare(tiny_llama(0, torch.float32))
    trainer = Trainer(model, Optimise(learning_rate=1e-6))
    rows = rows_of(forest, 0)
    for row in rows:
        with torch.no_grad():
            logp = forward(model, row).logp_E
        row.behaviour_P_T[:] = np.where(row.mask_P_T, logp.numpy()[row.index_P_T], 0.0)
        row.foreign_P_T[:] = False
    report = trainer.step(rows, 0)
    assert report.mismatch_kl == pytest.approx(0, abs=1e-9)
    assert report.foreign_fraction == 0
    assert 0 < report.entropy < np.log(40)
    for row in rows:
        row.behaviour_P_T[:] -= 0.5
        row.foreign_P_T[:] = row.mask_P_T
    report = trainer.step(rows, 1)
    assert report.mismatch_kl == pytest.approx(np.exp(0.5) - 1.5, abs=1e-3)
    assert report.foreign_fraction == 1
    assert report.clip_fraction > 0.2  # e^0.5 is above 1.2 wherever the advantage is positive


def test_models_that_cannot_be_trained_are_refused_by_name(
    tiny_llama: Callable[..., Any], tmp_path: Path
) -> None:
    from transformers import MiniCPM3Config, RwkvConfig

    scaled = "'minicpm3' sets logits_scaling"
    for config, word in (
        (RwkvConfig(), "'rwkv' divides its own weights"),
        (MiniCPM3Config(), scaled),
    ):
        with pytest.raises(NotReady, match=word):
            refuse_untrainable(config)
    with pytest.raises(InvalidInput, match="cannot load a causal LM"):
        load(tmp_path)
