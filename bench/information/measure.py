"""Signal over noise of the gradient per sampled token, by tree and estimator.

For a tree's gradient g it is |E g|² / Var g, over a million sampled tokens: independent trees of an
update add up in it, so that it does not depend on how many there are. It says what a token teaches;
it does not say that updates of fewer tokens come more often.
"""

import math
from collections.abc import Sequence

import numpy as np

from banyan import registry
from banyan.plugins import Estimator
from bench.harness.table import Result
from bench.information.chance import FACTS, Floats, Shape, gradient, grow

TREES, BLOCKS = 1500, 10
UNSURE = 60  # facts of 200 that are not known
STAGES = {"early": (0.0, 0.0), "middle": (1.0, 0.7), "late": (2.5, 1.2)}
"""Mean and deviation of what the logits of unsure facts have gained, by stage of a run."""
SHAPES = {
    "iid, 4 leaves": Shape((4,)),
    "iid, 8 leaves": Shape((8,)),
    "iid, 16 leaves": Shape((16,)),
    "iid, 32 leaves": Shape((32,)),
    "forks, 4 leaves": Shape((2, 2)),
    "forks, 8 leaves": Shape((2, 2, 2)),
    "forks, 16 leaves": Shape((2, 2, 2, 2)),
    "forks, 32 leaves": Shape((2, 2, 2, 2, 2)),
    "4 paths that fork late, 16 leaves": Shape((4, 1, 2, 2)),
}
FLAT, BY_BRANCH = ("grpo", "dr-grpo"), ("treepo", "rose", "treerl")


def run() -> Result:
    """Measure all shapes and estimators at three stages of a run."""
    result = Result("information")
    for stage in STAGES:
        right_F = table(stage)
        for shown, shape in SHAPES.items():
            names = FLAT if len(shape.forks) == 1 else (*FLAT, *BY_BRANCH)
            for name, (value, error, reward) in signals(shape, names, right_F).items():
                note = f"± {error:.1f}; mean reward {reward:.3f}"
                result.add(f"{stage}: {shown}, {name}", value, "", note)
    result.notes.append(
        f"{TREES} trees each; ± is a standard error, by leaving out a tenth at a time"
    )
    return result


def table(stage: str) -> Floats:
    """Return the probability of each fact at a stage of a run."""
    rng = np.random.default_rng(5)
    mean, deviation = STAGES[stage]
    logit_F = np.full(FACTS, 7.0)
    unsure = rng.permutation(FACTS)[:UNSURE]
    logit_F[unsure] = math.log(0.4 / 0.6) + rng.normal(mean, deviation, UNSURE)
    return np.asarray(1 / (1 + np.exp(-logit_F)))


def signals(
    shape: Shape, names: Sequence[str], right_F: Floats, trees: int = TREES
) -> dict[str, tuple[float, float, float]]:
    """Return signal over noise by estimator, its standard error, and the mean reward.

    All estimators see the same trees.
    """
    rng = np.random.default_rng(1)
    estimators: dict[str, Estimator] = {n: registry.build("optimise", n, {}) for n in names}
    gradients: dict[str, list[Floats]] = {name: [] for name in names}
    tokens, reward = 0, 0.0
    for _ in range(trees):
        grown = grow(shape, right_F, rng)
        tokens += grown.tokens
        reward += float(np.mean(list(grown.rewards.values())))
        for name, estimator in estimators.items():
            gradients[name].append(gradient(grown, estimator, right_F))
    found = {}
    for name, rows in gradients.items():
        value, error = jackknife(np.array(rows))
        scale = 1e6 * trees / tokens
        found[name] = value * scale, error * scale, reward / trees
    return found


def ratio(gradient_T_F: Floats) -> float:
    """Return |E g|² / Var g of independent gradients, without the bias of a finite number."""
    mean_F = gradient_T_F.mean(0)
    variance = float(((gradient_T_F - mean_F) ** 2).sum() / (len(gradient_T_F) - 1))
    return (float(mean_F @ mean_F) - variance / len(gradient_T_F)) / variance if variance else 0.0


def jackknife(gradient_T_F: Floats) -> tuple[float, float]:
    """Return the ratio, and its standard error by leaving out one of BLOCKS blocks at a time."""
    parts = np.array_split(np.arange(len(gradient_T_F)), BLOCKS)
    others = [ratio(np.delete(gradient_T_F, part, 0)) for part in parts]
    spread = (BLOCKS - 1) / BLOCKS * float(((np.array(others) - np.mean(others)) ** 2).sum())
    return ratio(gradient_T_F), math.sqrt(spread)
