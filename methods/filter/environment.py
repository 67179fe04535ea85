"""environment: the sum of the rewards that the environment gave along the path.

The rewards are those of the path's stored receipts, so a node cannot make any up; what the path
says counts nothing. A path without an answer earns 0. Estimators of steps (gigpo, hgpo) credit each
reward to the step that earned it, see docs/environments.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from banyan.plugins import Scored


@dataclass(frozen=True, slots=True)
class Environment:
    """Sum of an environment's rewards. It reads neither completion nor row."""

    name: str = field(default="environment", init=False)
    version: str = field(default="1", init=False)

    def score_rewards(self, rewards: Sequence[float]) -> Scored:
        """Return the sum, rounded once, with the number of answers as a part."""
        return Scored(math.fsum(rewards), {"turns": float(len(rewards))})
