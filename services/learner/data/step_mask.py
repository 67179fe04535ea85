"""Steps in which the policy was surest are left out of the lesson (DART-GUI, arXiv 2509.23866, card 47). Pure.

H of a step = the mean entropy of what the policy sampled in it, as the engine recorded it. A step below the `quantile` of
its group's has the factor 0: its advantage is 0 on every path, and its tokens stay in the loss's denominators. Steps are
those of advantages/steps.py; one that several paths share is one step.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from banyan.credit.grove import Grove, plant
from banyan.credit.stats import Bools, Floats
from banyan.errors import InvalidInput
from services.learner.data.credit import Credit


def masked(credits: Sequence[Credit], quantile: float) -> list[Credit]:
    """The batch's credits without the surest steps of each group; as they are for a quantile of 0."""
    return [c if not quantile or c.advantages.skip else _masked(c, quantile) for c in credits]


def _masked(credit: Credit, quantile: float) -> Credit:
    grove, said = plant(credit.group), credit.advantages
    kept_S = np.append(kept(grove, quantile), True)  # step -1: nodes that no scored leaf is below
    factors: list[list[Floats]] = []
    for index, view in enumerate(credit.group.trees):
        factor_N_T = (
            said.factor_G_N_T[index]
            if said.factor_G_N_T
            else [np.ones(len(node)) for node in view.nodes]
        )
        factors.append(
            [f * kept_S[at] for f, at in zip(factor_N_T, grove.step_N[index], strict=True)]
        )
    return replace(credit, advantages=replace(said, factor_G_N_T=tuple(factors)))


def kept(grove: Grove, quantile: float) -> Bools:
    """Which steps stay: those without an action, and those whose H is at least the quantile of the group's."""
    acted_S = grove.trained_S > 0
    if not acted_S.any():
        return ~acted_S
    entropy_S = np.array(
        [_entropy(grove, index) if acted else 0.0 for index, acted in enumerate(acted_S)]
    )
    return np.asarray(~acted_S | (entropy_S >= np.quantile(entropy_S[acted_S], quantile)))


def _entropy(grove: Grove, step: int) -> float:
    nodes = [node for node in grove.steps[step].nodes if node.trained]
    for node in nodes:
        if len(node.segment.entropies_T) != len(node.segment):
            remedy = "grow the trees with an engine that records entropies (torch), or set it to 0"
            name = node.segment.id.hex()[:12]
            raise InvalidInput(
                f"optimise.entropy_quantile needs the entropy of every sampled token; segment {name} of group "
                f"{grove.group.group_id} has none: {remedy}"
            )
    return float(
        np.concatenate([n.segment.entropies_T[n.start : n.stop] for n in nodes]).mean(
            dtype=np.float64
        )
    )
