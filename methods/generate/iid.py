"""iid: independent samples of one prompt.

Paper: Shao et al. 2024, GRPO, arXiv 2402.03300

A tree of depth one: `width` branches from the root, each sampled to its end. They share the prompt.
"""

from dataclasses import dataclass
from typing import ClassVar

from banyan.facts import STEPS
from banyan.plugins import Branch, checks
from methods.generate.coroutine_policy import Growing, Growth


@dataclass(frozen=True)
class Iid(Growing):
    """Independent sampling."""

    gives: ClassVar[frozenset[str]] = frozenset({STEPS})
    acts: ClassVar[bool] = True
    width: int = 8
    """Leaves of a tree."""

    def __post_init__(self) -> None:
        checks.whole(self, ("width",), 1)

    async def grow(self, growth: Growth) -> None:
        """Sample all branches at once, with a leaf at each end."""
        for ordinal in range(growth.width(self.width)):
            growth.start(growth.path(Branch(*growth.root, ordinal)))
