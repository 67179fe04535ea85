"""Learning rates by step: warm-up, and the schedules by name."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from banyan.recipe import Optimise
from services.learner.training.schedule import learning_rate


def rates(steps: int, **optimise: Any) -> list[float]:
    settings = Optimise(learning_rate=0.4, **optimise)
    return [learning_rate(settings, step) for step in range(steps)]


def test_constant() -> None:
    assert rates(3) == rates(3, schedule="constant") == [0.4] * 3
    assert rates(5, warmup_steps=4, schedule="constant") == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_linear_falls_to_its_floor_and_stays_there() -> None:
    assert rates(6, decay_steps=4) == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0, 0.0])
    assert rates(6, decay_steps=4, decay_floor=0.5) == pytest.approx(
        [0.4, 0.35, 0.3, 0.25, 0.2, 0.2]
    )
    assert rates(3, decay_steps=4, warmup_steps=2) == pytest.approx([0.2, 0.3, 0.2])


def test_cosine_falls_to_its_floor_and_stays_there() -> None:
    half = 0.4 * (1 + math.cos(math.pi / 4)) / 2
    assert rates(6, schedule="cosine", decay_steps=4) == pytest.approx(
        [0.4, half, 0.2, 0.4 - half, 0.0, 0.0]
    )
    assert rates(6, schedule="cosine", decay_steps=4, decay_floor=0.1)[2:] == pytest.approx(
        [0.22, 0.04 + 0.9 * (0.4 - half), 0.04, 0.04]
    )


@pytest.mark.parametrize(
    "optimise",
    [
        {"schedule": "constant", "decay_steps": 4},
        {"schedule": "constant", "decay_floor": 0.1},
        {"schedule": "cosine"},
        {"decay_floor": 0.1},
        {"schedule": "step"},
    ],
)
def test_schedules_that_say_two_things_are_refused(optimise: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="schedule"):
        Optimise(**optimise)
