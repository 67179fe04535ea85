"""echo: GRPO, shaped token by token by the uncertainty of the policy.

Paper: ECHO, arXiv 2602.02150
Formula: A·(1 + strength · clip(w_H · z(H) + w_C · z(1 − C), ±bound))
Left out: the clip range per sequence, which is the loss echo-clip

H is the entropy of the untempered distribution that the engine recorded; C = exp(log-prob of the
sampled token), the fallback of the published trainer; z is whitening over all trained path tokens
of the batch. With strength · bound < 1 no advantage changes its sign.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from banyan.credit.stats import Floats
from banyan.credit.whitening import whiten
from banyan.errors import InvalidInput
from banyan.plugins import Advantages, GroupTrees
from banyan.view import Node, TreeView
from methods.advantages import checks
from methods.advantages.grpo import Grpo


@dataclass(frozen=True)
class Echo:
    """Settings.

    strength: strength of the shaping
    entropy_weight, doubt_weight: weights of the two signals
    bound: bound of their sum
    scale, epsilon: GRPO's
    """

    strength: float = 0.1
    entropy_weight: float = 1.0
    doubt_weight: float = 1.0
    bound: float = 2.0
    scale: str = "std"
    epsilon: float = 1e-6
    needs_logprobs: ClassVar[bool] = True
    needs_entropy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("strength", "entropy_weight", "doubt_weight", "bound"):
            checks.within(name, getattr(self, name), 0, 100)
        Grpo(self.scale, self.epsilon)

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return GRPO's advantages; refuse a group whose tokens have no entropies."""
        for view in group.trees:
            for node in view.nodes:
                _needed(node, group.group_id)
        return Grpo(self.scale, self.epsilon).estimate(group)

    def factors(self, trees: Sequence[TreeView]) -> list[list[Floats]]:
        """Return 1 + strength · S of each token of each node; 1 where nothing is trained."""
        nodes = [n for view in trees for n in view.nodes if _shaped(n)]
        entropy_T = _joined(map(_entropies, nodes))
        doubt_T = _joined(map(_doubts, nodes))
        paths_T = _joined(map(_paths, nodes))
        shape_T = shape(entropy_T, doubt_T, paths_T, self.entropy_weight, self.doubt_weight)
        factor_T = 1 + self.strength * np.clip(shape_T, -self.bound, self.bound)
        parts = iter(np.split(factor_T, np.cumsum([len(n) for n in nodes])))
        return [
            [next(parts) if _shaped(n) else np.ones(len(n)) for n in view.nodes] for view in trees
        ]


def shape(
    entropy_T: Floats,
    doubt_T: Floats,
    paths_T: Floats,
    entropy_weight: float = 1.0,
    doubt_weight: float = 1.0,
) -> Floats:
    """Return S before it is clamped. A token counts once for each path that it lies on."""
    return entropy_weight * whiten(entropy_T, paths_T) + doubt_weight * whiten(doubt_T, paths_T)


def _shaped(node: Node) -> bool:
    return node.trained and node.paths > 0


def _needed(node: Node, group_id: str) -> None:
    if _shaped(node) and len(node.segment.entropies_T) != len(node.segment):
        name = node.segment.id.hex()[:12]
        raise InvalidInput(
            f"echo needs the entropy of every sampled token; segment {name} of group {group_id} "
            "has none: grow the trees with an engine that records entropies (torch), or choose "
            "grpo"
        )


def _joined(parts: Iterable[Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *parts])


def _entropies(node: Node) -> Floats:
    return node.segment.entropies_T[node.start : node.stop].astype(np.float64)


def _doubts(node: Node) -> Floats:
    return np.asarray(1 - np.exp(np.minimum(node.logprobs_T.astype(np.float64), 0.0)))


def _paths(node: Node) -> Floats:
    return np.full(len(node), node.paths, np.float64)
