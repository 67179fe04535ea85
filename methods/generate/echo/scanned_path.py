"""A path of echo with entropy and confidence of its tokens."""

from dataclasses import dataclass, field

import numpy as np

from banyan.plugins import Branch
from banyan.segment import Segment
from methods.generate.chains import Chain, signals_of
from methods.generate.echo import confidence
from methods.generate.echo.confidence import Values


@dataclass(frozen=True, eq=False, slots=True)
class ScannedPath:
    """Path with H and C of its examined policy tokens; a chain begins at its start."""

    chain: Chain
    entropy_T: Values = field(default_factory=lambda: np.zeros(0))
    confidence_T: Values = field(default_factory=lambda: np.zeros(0))

    def and_then(self, piece: Segment, k: int, measure: str) -> "ScannedPath":
        """Return the path with its next piece."""
        entropy, c = confidence.entropy_and_confidence(
            signals_of(piece).top_logprobs_T_K, k, measure
        )
        return ScannedPath(
            chain=self.chain.and_then(piece),
            entropy_T=np.concatenate([self.entropy_T, entropy]),
            confidence_T=np.concatenate([self.confidence_T, c]),
        )

    def below(self, branch: Branch, start: int) -> "ScannedPath":
        """Return a path that leaves this one behind `start` tokens; windows reach beyond the
        branch."""
        return ScannedPath(
            Chain(branch, start, self.chain.limit),
            self.entropy_T[:start],
            self.confidence_T[:start],
        )
