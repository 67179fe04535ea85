"""Several optimizer steps on a batch: those of a plain loop over flat sequences; exact resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from banyan.credit.estimate import ScoredTree
from banyan.recipe import Optimise
from services.learner import losses
from services.learner.data.prepare import build_lesson
from services.learner.model.load import prepare
from services.learner.packing.packing import PackedSequence
from services.learner.training.trainer import Trainer, settle
from tests.learner.flat_reference import gathered, sequences, summed
from tests.learner.in_memory_learner import MemoryStore, Rig, grown, recipe, straight
from tests.learner.mixed_batches import batch, exact, sequences_of

RATE, CLIP = 0.02, 0.5
CASES: list[tuple[str, dict[str, Any]]] = [
    ("ppo-clip", {}),
    ("decoupled", {"importance": {"level": "token", "cap": 1.5, "normalise": True}}),
    ("gspo", {"clip_low": 0.1, "clip_high": 0.1}),
    ("cispo", {"clip_high": 0.2}),
]


@pytest.fixture(autouse=True)
def _settled() -> None:
    settle(1)


def by_hand(
    model: Any, start: Any, parts: list[Any], name: str, loss_settings: dict[str, Any], epochs: int
) -> list[float]:
    """Run PPO's loop in a dozen lines; return the loss of each step.

    AdamW moves `model`; `start`, the same weights, gives the old log-probs.
    """
    loss = losses.build(name, loss_settings)
    for one in (model, start):
        one.set_attn_implementation("sdpa")
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    matrices = [p for p in model.parameters() if p.dim() > 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    adam, values = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999)), []
    for _ in range(epochs):
        for part in parts:
            value, gradients = summed(
                model, [gathered(model, s, proximal=start) for s in part], loss
            )
            for parameter_name, parameter in model.named_parameters():
                parameter.grad = gradients[parameter_name]
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            adam.step()
            values.append(value)
    return values


def minibatches(
    seed: int, name: str, loss_settings: dict[str, Any], count: int
) -> tuple[list[list[PackedSequence]], list[Any]]:
    """Return packed and flat sequences of each minibatch, of three trees each."""
    rows, flat = [], []
    for part in range(count):
        views, leaf_G_L = batch(seed + part)
        rows.append(sequences_of(views, leaf_G_L, losses.build(name, loss_settings), 60))
        flat.append(sequences(views, leaf_G_L))
    return rows, flat


@pytest.mark.parametrize(("epochs", "count"), [(2, 1), (1, 2), (3, 2)])
@pytest.mark.parametrize(("name", "loss_settings"), CASES, ids=[name for name, _ in CASES])
def test_several_steps_are_those_of_a_flat_loop(
    tiny_llama: Callable[..., Any],
    name: str,
    loss_settings: dict[str, Any],
    epochs: int,
    count: int,
) -> None:
    rows, flat = minibatches(11, name, loss_settings, count)
    expected = exact(tiny_llama(1))
    expected_losses = by_hand(expected, exact(tiny_llama(1)), flat, name, loss_settings, epochs)
    optimise = Optimise(
        loss=name,  # type: ignore[arg-type]
        loss_settings=loss_settings,
        epochs=epochs,
        learning_rate=RATE,
        weight_decay=0.01,
        clip_norm=CLIP,
    )
    trainer = Trainer(prepare(exact(tiny_llama(1))), optimise, torch.float64)
    report = trainer.step([row for part in rows for row in part], 0, [len(part) for part in rows])
    assert report.loss == pytest.approx(np.mean(expected_losses), rel=1e-6)
    assert report.measures["optimizer_steps"] == epochs * count
    for weight_name, weight in expected.named_parameters():
        assert torch.allclose(trainer.masters.exact()[weight_name], weight, rtol=0, atol=1e-6), (
            weight_name
        )


def test_ratios_leave_one_after_the_first_step_and_are_clipped(
    tiny_llama: Callable[..., Any],
) -> None:
    clipped = []
    for epochs in (1, 4):
        rows = minibatches(5, "ppo-clip", {}, 1)[0][0]
        for row in rows:
            row.foreign_P_T[:] = False  # on-policy: the first step's ratios are 1
        optimise = Optimise(epochs=epochs, learning_rate=RATE)
        clipped.append(
            Trainer(prepare(tiny_llama(0)), optimise, torch.float64).step(rows, 0).clip_fraction
        )
    assert clipped[0] == 0.0
    assert clipped[1] > 0.1


def test_a_step_that_is_not_finite_is_skipped_and_the_others_are_taken(
    tiny_llama: Callable[..., Any],
) -> None:
    rows = minibatches(5, "ppo-clip", {}, 2)[0]
    rows[0][0].advantage_P_T[0, 0] = np.nan
    trainer = Trainer(prepare(tiny_llama(0)), Optimise(learning_rate=RATE), torch.float64)
    report = trainer.step([*rows[0], *rows[1]], 0, [len(part) for part in rows])
    assert (report.applied, report.finite, report.skipped, report.measures["optimizer_steps"]) == (
        True,
        False,
        1,
        1.0,
    )
    assert all(torch.isfinite(w).all() for w in trainer.masters.exact().values())


def test_groups_are_dealt_whole_and_those_that_teach_nothing_take_no_step(forest: Any) -> None:
    from methods.advantages.grpo import Grpo

    def group(number: int, rewards: list[float]) -> tuple[str, list[ScoredTree]]:
        view = forest.flat(rewards, bytes([number]) * 32)
        return f"g{number}", [
            ScoredTree(view.tree, view.leaves_L, dict(zip(view.leaves_L, rewards, strict=True)))
        ]

    groups = [group(1, [0, 1]), group(2, [1, 1]), group(3, [1, 0]), group(4, [0, 1])]

    def sizes(minibatches: int) -> tuple[int, ...]:
        lesson = build_lesson(
            groups, Grpo(), lambda _tree, _leaf: False, b"now", 7, minibatches=minibatches
        )
        assert (
            sum(lesson.sizes) == len(lesson.sequences) == 3
        )  # a row holds one tree: the budget is 7 tokens
        return lesson.sizes

    assert [sizes(n) for n in (1, 2, 3, 9)] == [(3,), (1, 2), (1, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize("die", [1, 3])
async def test_a_killed_learner_trains_the_same_steps_again(
    tmp_path: Path, tiny_folder: Path, die: int
) -> None:
    several = {"epochs": 2, "minibatches": 2, "checkpoint_every": 2}
    whole = await straight(tmp_path, tiny_folder, **several)
    once = await straight(tmp_path / "once", tiny_folder)
    store = MemoryStore(grown, die_after_commit=die)
    rig = Rig(tmp_path / "killed", tiny_folder, store, recipe(5, **several))
    with pytest.raises(ConnectionAbortedError):
        await rig.run()
    store.die_after_commit = -1
    await rig.run()
    assert all(torch.equal(whole.final()[n], t) for n, t in rig.final().items())
    assert not all(torch.equal(once.final()[n], t) for n, t in rig.final().items())
    assert [p.metrics["optimizer_steps"] for p in store.live if p.policy.step] == [4.0] * 5
