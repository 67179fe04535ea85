"""Masks the steps in which the policy was surest (DART-GUI, arXiv 2509.23866). Pure.

H of a step = mean entropy of the tokens that the policy sampled in it, as the engine recorded it.
A step below the `quantile` of its group's steps gets the factor 0: its advantage is 0 on every
path, and its tokens stay in the denominators of the loss. Steps are those of
banyan/credit/steps.py; one that several paths share is one step.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from banyan.credit.estimate import Credit
from banyan.credit.group_arrays import GroupArrays, group_arrays
from banyan.credit.stats import Bools, Floats
from banyan.errors import InvalidInput


def masked(credits: Sequence[Credit], quantile: float) -> list[Credit]:
    """Mask the surest steps of each group; return the credits unchanged for a quantile of 0."""
    return [
        credit if not quantile or credit.advantages.skip else _masked(credit, quantile)
        for credit in credits
    ]


def _masked(credit: Credit, quantile: float) -> Credit:
    arrays, advantages = group_arrays(credit.group), credit.advantages
    kept_S = np.append(kept(arrays, quantile), True)  # step -1: nodes without a scored leaf below
    factors: list[list[Floats]] = []
    for index, view in enumerate(credit.group.trees):
        if advantages.factor_G_N_T:
            factor_N_T = advantages.factor_G_N_T[index]
        else:
            factor_N_T = [np.ones(len(node)) for node in view.nodes]
        step_N = arrays.step_N[index]
        factors.append(
            [factor_T * kept_S[step] for factor_T, step in zip(factor_N_T, step_N, strict=True)]
        )
    return replace(credit, advantages=replace(advantages, factor_G_N_T=tuple(factors)))


def kept(arrays: GroupArrays, quantile: float) -> Bools:
    """Return the steps that stay: those without an action, and those with H not below the quantile.

    Raise InvalidInput if the entropy of a sampled token was not recorded.
    """
    acted_S = arrays.trained_S > 0
    if not acted_S.any():
        return ~acted_S
    entropy_S = np.array(
        [_entropy(arrays, step) if acted else 0.0 for step, acted in enumerate(acted_S)]
    )
    return np.asarray(~acted_S | (entropy_S >= np.quantile(entropy_S[acted_S], quantile)))


def _entropy(arrays: GroupArrays, step: int) -> float:
    nodes = [node for node in arrays.steps[step].nodes if node.trained]
    for node in nodes:
        if len(node.segment.entropies_T) != len(node.segment):
            raise InvalidInput(
                "optimise.entropy_quantile needs the entropy of every sampled token; segment "
                f"{node.segment.id.hex()[:12]} of group {arrays.group.group_id} has none: grow the "
                "trees with an engine that records entropies (torch), or set it to 0"
            )
    entropy_T = np.concatenate([n.segment.entropies_T[n.start : n.stop] for n in nodes])
    return float(entropy_T.mean(dtype=np.float64))
