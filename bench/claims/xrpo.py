"""XRPO: rollouts that uniform allocation needs for the same error of the mean rewards.

Prompts are right with a fixed chance each, drawn anew for each seed. The rule shares a pot in
rounds; the error is the sum of squared differences of mean rewards and chances. That of uniform
allocation falls as 1 / n, so the ratio of errors at equal rollouts is the ratio of rollouts.
"""

from collections.abc import Sequence

import numpy as np

from banyan import registry
from bench.claims.claim import Claim, Finding, verdict
from bench.claims.intervals import pairs
from bench.harness.kept import Cell
from services.gateway.allocation.growth_budgets import GrowthBudgets, TreeBudget

PROMPTS, ROLLOUTS, START, MOST, REPEATS = 32, 16, 4, 64, 50
_SAID = 2.7


def measure(seed: int) -> Cell:
    """Return the squared errors of both allocations, summed over repeats."""
    rng = np.random.default_rng(seed)
    chance_Q = rng.beta(0.5, 0.5, PROMPTS)  # most prompts are mostly right or mostly wrong
    errors = {"xrpo": 0.0, "uniform": 0.0}
    for _ in range(REPEATS):
        trees = _allocated(chance_Q, rng)
        means = [float(np.mean([r for r in tree.rewards if r is not None])) for tree in trees]
        errors["xrpo"] += float(((np.array(means) - chance_Q) ** 2).sum())
        uniform_Q = rng.binomial(ROLLOUTS, chance_Q) / ROLLOUTS
        errors["uniform"] += float(((uniform_Q - chance_Q) ** 2).sum())
    return errors


def _allocated(chance_Q: np.ndarray, rng: np.random.Generator) -> list[TreeBudget]:
    """Return the trees of all prompts when their growth budgets are final."""
    share = registry.build("rooms", "xrpo", {"rollouts": ROLLOUTS})
    rule = GrowthBudgets(share, PROMPTS, MOST)
    trees = [_tree(q, (), START, rng.random(START) < p) for q, p in enumerate(chance_Q)]
    while any(tree.open for tree in trees):
        (grants,) = rule.grants(trees).values()
        for q, grant in enumerate(grants):
            more = rng.random(grant.leaves - trees[q].granted) < chance_Q[q]
            tree = _tree(q, trees[q].rewards, grant.leaves, more)
            trees[q] = TreeBudget(
                tree_id=tree.tree_id,
                ordinal=q,
                growing=True,
                granted=grant.leaves,
                round=grant.round,
                final=grant.final,
                ended=grant.leaves,
                rewards=tree.rewards,
            )
    return trees


def _tree(
    ordinal: int, before: Sequence[float | None], granted: int, more: np.ndarray
) -> TreeBudget:
    rewards = (*before, *map(float, more))
    tree_id = ordinal.to_bytes(4, "little")
    return TreeBudget(tree_id, ordinal, True, granted, ended=granted, rewards=rewards)


def tell(cells: Sequence[Cell]) -> Finding:
    """Compare errors."""
    found = pairs([cell["uniform"] for cell in cells], [cell["xrpo"] for cell in cells])
    return Finding(
        ours=f"{found.estimate:.2f} times fewer rollouts for the same error of mean rewards",
        n=f"{len(cells)} sets of {PROMPTS} prompts, {REPEATS} repeats each",
        interval=f"{found.low:.2f} to {found.high:.2f}",
        on="prompts with fixed chances, control's rounds; nothing learns, no examples in front",
        verdict=verdict(found.low, found.high, _SAID),
    )


CLAIM = Claim(
    name="xrpo",
    system="XRPO (arXiv 2510.06672)",
    says="converges with 2.7 times fewer rollouts",
    tell=tell,
    seeds=range(20),
    asked={"prompts": PROMPTS, "rollouts": ROLLOUTS, "repeats": REPEATS},
    measure=measure,
)
