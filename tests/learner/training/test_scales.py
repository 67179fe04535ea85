"""The default step of every estimator on right and wrong answers is of the size of GRPO's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from banyan import registry
from banyan.credit.estimate import ScoredTree
from banyan.recipe import Optimise
from services.learner.data.prepare import Lesson, build_lesson
from services.learner.model.load import prepare
from services.learner.training.trainer import StepReport, Trainer, settle
from tests.methods.advantages.planting import leaf, planted

FACTS = {"mars2", "sage-skill"}  # they need rewards inside paths
OTHER_LOSS = {"otr"}
NAMES = sorted(set(registry.names("optimise")) - FACTS - OTHER_LOSS)


def lesson(name: str, share: float | None) -> Lesson:
    """Return a lesson of eight groups of five answers of eight tokens.

    share: share of right answers; None for rewards of many values
    """
    rng = np.random.default_rng(7)
    fresh = []
    for number in range(8):
        drawn = rng.random(5)
        rewards = (drawn if share is None else (drawn < share).astype(float)).tolist()
        view = planted([leaf(reward, tokens=8) for reward in rewards], bytes([number]) * 32).view
        tree = ScoredTree(view.tree, view.leaves_L, dict(zip(view.leaves_L, rewards, strict=True)))
        fresh.append((f"g{number}", [tree]))
    return build_lesson(
        fresh, registry.build("optimise", name, {}), lambda _tree, _leaf: False, b"", 400
    )


def stepped(make: Callable[..., Any], batch: Lesson) -> StepReport:
    settle(1)
    return Trainer(prepare(make(0)), Optimise()).step(batch.sequences, 0)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8, None])
def test_an_estimators_step_is_of_the_size_of_grpos(
    tiny_llama: Callable[..., Any], share: float | None
) -> None:
    settled = stepped(tiny_llama, lesson("grpo", share))
    assert settled.applied and settled.grad_norm > 0
    for name in NAMES:
        report = stepped(tiny_llama, lesson(name, share))
        assert settled.grad_norm / 10 < report.grad_norm < settled.grad_norm * 10, name
        assert abs(report.loss) < 2, name
