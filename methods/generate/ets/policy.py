"""ets: step-level search that prunes candidates by memory cost and keeps one of each kind.

Paper: Hooper et al. 2025, ETS, arXiv 2502.13575
Formula: maximise Σ O_i x_i − λ_b·(Σ_j y_j + Σ_i x_i)/(M + N) + (λ_d/K)·Σ_k z_k
Left out: the separate reward model (the learned head or a scorer instead) and the embedding model

Paths grow a step at a time, to a delimiter or `step` tokens. When all steps of a depth are there,
paths that ended are leaves and use one of the width each. Of the others an integer program keeps
the best by the scores of their last steps: each node that they need has a cost, each cluster of
steps that they cover has a worth. The kept ones share the remaining width by REBASE. So a tree has
exactly `width` leaves; a dropped candidate never becomes one.

A step's score is that of the policy's learned head at its last token, or a scorer's for the path so
far. While the head is cold all scores are equal. With λ_b = 0 nothing is dropped: REBASE alone.

The published search uses a reward model of its own, with question and answer. A scorer here gets
the path's text, and as its row the prompt's text alone: a plan is made of the recorded tree, which
holds no more of the task. It runs where trees are planned, in the node and without the verifier's
sandbox, so only scorers that the verifier itself runs without one are allowed; and it runs again
whenever a plan is made again, so it must be deterministic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from banyan import registry
from banyan.plugins import Observation, Scored, Scorer, checks
from banyan.plugins.filter import UNCONFINED, unconfined
from banyan.segment import Finish
from banyan.tree import Leaf, Tree
from methods.generate.coroutine_policy import Growing, Growth
from methods.generate.ets.search import Search


@dataclass(frozen=True)
class Ets(Growing):
    """Tree search with a cost of memory and a bonus for coverage."""

    width: int = 16
    """w: leaves of a tree; 16, 64 or 256 in the paper."""
    step: int = 256
    """Tokens of a step at most."""
    delimiter: str = "\n\n"
    """Text that ends a step."""
    depth: int = 25
    """Steps of a path at most."""
    most: int = 1024
    """Tokens of a path after which it is a leaf."""
    lambda_b: float = 1.0
    """λ_b: cost of a node kept; 0 is REBASE."""
    lambda_d: float = 1.5
    """λ_d: worth of covering all clusters; 1.5, 1.4 and 1.45 at the three widths. 0 clusters
    nothing."""
    temperature: float = 0.2
    """T of REBASE's shares: smaller ones follow the scores more closely."""
    cut: float = 0.05
    """Cosine distance up to which steps are one cluster."""
    scorer: str = ""
    """Scorer of steps: empty for the policy's head; else one that runs without a sandbox, such as
    `number` or `format`, called with the path's text and a row {prompt}."""
    scorer_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the scorer."""

    def __post_init__(self) -> None:
        checks.whole(self, ("width", "step", "depth", "most"), 1)
        if not self.delimiter or not isinstance(self.delimiter, str):
            raise ValueError("delimiter must be a text that ends a step")
        for name, least in (
            ("lambda_b", 0.0),
            ("lambda_d", 0.0),
            ("cut", 0.0),
            ("temperature", 1e-6),
        ):
            if isinstance(getattr(self, name), bool) or not least <= getattr(self, name) < float(
                "inf"
            ):
                raise ValueError(
                    f"{name} must be a number of at least {least:g}, got {getattr(self, name)!r}"
                )
        scorer = (
            registry.build("filter", self.scorer, self.scorer_settings) if self.scorer else None
        )
        if scorer is not None and not unconfined(self.scorer, scorer):
            raise ValueError(
                f"scorer {self.scorer!r} needs the verifier's sandbox, and a tree is planned "
                f"without it; ets takes {', '.join(UNCONFINED)}, or, without a scorer, the "
                "policy's head"
            )
        object.__setattr__(self, "_scorer", scorer)

    @property
    def needs_head(self) -> bool:
        """True if scores come from the policy's head."""
        return not self.scorer

    async def grow(self, growth: Growth) -> None:
        """Search depth by depth."""
        await Search(self, growth, growth.width(self.width)).grow()

    def observations(self, tree: Tree, leaves: Sequence[Leaf]) -> list[Observation]:
        """Return the ends of all steps on the leaves' paths; nothing if the head is not used."""
        if self.scorer:
            return []
        observations = []
        for leaf in leaves:
            at = 0
            for segment in tree.lineage(leaf.segment)[1:]:
                at += len(segment)
                if segment.finish is not Finish.ABORTED:
                    observations.append(Observation(leaf, at - 1))
        return observations

    def score(self, prompt: str, text: str) -> float:
        """Return the scorer's value of a path's text behind a prompt; 0 if unscorable."""
        scorer: Scorer = self._scorer  # type: ignore[attr-defined]
        score = scorer.score(text, {"prompt": prompt})
        return score.value if isinstance(score, Scored) else 0.0
