"""Supervised steps with the learner's own trainer: −log π of the trained tokens, their mean.

This is REINFORCE with advantage 1 on tokens of a teacher, so packing, masks, AdamW, clipping and
the schedule are those of reinforcement learning. A recipe with the loss `otr` has its own loss on
them: one-token rollouts on rows of an expert (OTR, arXiv 2509.26313).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from banyan.errors import NotReady
from banyan.recipe import Lora, Optimise, Resources
from services.learner.model import attention_check, device, lora, merge_lora
from services.learner.model import load as models
from services.learner.packing import packing
from services.learner.packing.unroll import TreePart
from services.learner.training import trainer as training
from services.learner.training.trainer import Trainer

OF_LABELS = "otr"  # a loss that is made for labels
WARMUP_SHARE = 0.1  # of the steps; then the rate falls linearly to 0


@dataclass(frozen=True, slots=True)
class Losses:
    """Mean −log π of a trained token, in nats.

    before, after: of the measured parts, before the first step and after the last
    by_step: of each step's batch, before the step
    """

    before: float
    after: float
    by_step: tuple[float, ...]


def load(
    folder: Path, resources: Resources, threads: int | None, deterministic: bool = False
) -> tuple[PreTrainedModel, torch.dtype]:
    """Load a model where the recipe trains, checked; return it with the dtype to compute in."""
    chosen = device.choose(resources.learner_device, deterministic)
    device.set_current(chosen)
    training.settle(threads, chosen)
    model = models.load(folder).to(chosen)  # type: ignore[arg-type]  # transformers decorates it
    attention_check.check(model)
    return model, device.compute_dtype(resources.dtype, chosen)


def budget(model: PreTrainedModel, optimise: Optimise) -> int:
    """Return the most tokens of a packed sequence; 0 for a model that is trained flat."""
    return models.budget(model, optimise.tokens_per_row)


def trainer_of(
    model: PreTrainedModel,
    optimise: Optimise,
    dtype: torch.dtype,
    *,
    steps: int,
    learning_rate: float,
    adapter: Lora | None = None,
    seed: int = 0,
) -> Trainer:
    """Return a trainer of `steps` steps.

    optimise: the recipe's, for its objective and what bounds memory
    adapter: to be trained instead of the model's own weights
    """
    if adapter is not None:
        model = lora.attach(model, adapter, seed)
    loss, settings = objective(optimise)
    own = Optimise.model_validate(
        {
            "loss": loss,
            "loss_settings": settings,
            "learning_rate": learning_rate,
            "warmup_steps": round(WARMUP_SHARE * steps),
            "decay_steps": steps,
            "tokens_per_row": optimise.tokens_per_row,
            "recompute": optimise.recompute,
            "lora": adapter,
        }
    )
    return Trainer(model, own, dtype, seed)


def objective(optimise: Optimise) -> tuple[str, Mapping[str, Any]]:
    """Return the loss on labels, with its settings: the recipe's if that is of labels."""
    return (OF_LABELS, optimise.loss_settings) if optimise.loss == OF_LABELS else ("reinforce", {})


def teach(
    trainer: Trainer,
    batches: Sequence[Sequence[TreePart]],
    measured: Sequence[TreePart],
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> Losses:
    """Take a step on each batch. Raise NotReady for a loss or gradient that is not finite.

    measured: parts whose loss is taken before and after
    on_step: called with the number and the loss of each step
    """
    before = mean_loss(trainer, measured)
    by_step = []
    for step, batch in enumerate(batches):
        report = trainer.step(packing.pack(batch, trainer.budget), step)
        if not report.finite:
            raise NotReady(
                f"the loss or its gradient at step {step + 1} of {len(batches)} is not finite; "
                "nothing is written: take a lower learning rate"
            )
        by_step.append(report.loss)
        on_step(step + 1, report.loss)
    return Losses(before, mean_loss(trainer, measured), tuple(by_step))


@torch.no_grad()
def mean_loss(trainer: Trainer, parts: Sequence[TreePart]) -> float:
    """Return the mean −log π of the trained path tokens, as the model computes now."""
    total, count = 0.0, 0
    for sequence in packing.pack(parts, trainer.budget):
        logp_E = trainer.compute(sequence).logp_E.cpu()
        index_P_T = torch.from_numpy(sequence.index_P_T)
        mask_P_T = torch.from_numpy(sequence.mask_P_T)
        total -= float(logp_E[index_P_T][mask_P_T].double().sum())
        count += int(mask_P_T.sum())
    return total / max(1, count)


def weights(trainer: Trainer, base: Path) -> dict[str, torch.Tensor]:
    """Return the float32 weights of the plain model, an adapter merged into the base's."""
    exact = trainer.masters.exact()
    adapter = trainer.optimise.lora
    return exact if adapter is None else merge_lora.tensors(base, adapter, exact)
