"""The learning rate of a step, a function of its number: a resumed run has the same rates. Pure."""

import math

from banyan.recipe import Optimise


def learning_rate(optimise: Optimise, step: int) -> float:
    """Return the rate of the step that makes policy `step + 1`.

    It is a linear warm-up times the schedule, which begins at the first step.
    """
    warmth = min(1.0, (step + 1) / max(1, optimise.warmup_steps))
    floor = optimise.decay_floor
    return optimise.learning_rate * warmth * (floor + (1.0 - floor) * _decay(optimise, step))


def _decay(optimise: Optimise, step: int) -> float:
    """Return the share of the range above the floor: 1 at the first step, 0 from decay_steps on."""
    if not optimise.decay_steps:
        return 1.0
    left = max(0.0, 1.0 - step / optimise.decay_steps)
    return (1.0 - math.cos(math.pi * left)) / 2 if optimise.schedule == "cosine" else left
