"""The learning rate of a step, by its number alone: a run that goes on has the rates that it would have had. Pure."""

import math

from banyan.recipe import Optimise


def learning_rate(optimise: Optimise, step: int) -> float:
    """Rate of the step that makes policy `step + 1`: linear warm-up times the schedule, which begins at the first step."""
    warm = min(1.0, (step + 1) / max(1, optimise.warmup_steps))
    floor = optimise.decay_floor
    return optimise.learning_rate * warm * (floor + (1.0 - floor) * _left(optimise, step))


def _left(optimise: Optimise, step: int) -> float:
    """Of what lies above the floor: 1 at the first step, 0 from decay_steps on."""
    if not optimise.decay_steps:
        return 1.0
    left = max(0.0, 1.0 - step / optimise.decay_steps)
    return (1.0 - math.cos(math.pi * left)) / 2 if optimise.schedule == "cosine" else left
