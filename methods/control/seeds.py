"""seeds: an unsolved problem comes back with solved ones in front.

Paper: XRPO, arXiv 2510.06672
Left out: the embedding model of the retrieval; here it is the cosine of character n-grams

Rows come in the order of `uniform`. If all rollouts of a row's newest group failed, its next group
gets the K solved problems whose prompts are most alike: each prompt as a user's message, and a
verified answer of this run as the assistant's, the nearest last. Trees are grown and trained with
these messages: they are part of the prompt. If no prompt is as alike as `alike`, the prompt stays
plain. Long prompts and answers are cut.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from banyan.draws import Draws
from banyan.plugins import Allocation, Budget, PromptStats, RowStats, checks
from banyan.text.ngrams import F32, embed
from methods.control.uniform import row_of

MOST_CHARS = 4000  # below the characters that the store keeps
MOST_EXAMPLES = 64
_CUT = " …"


@dataclass(frozen=True)
class Seeds:
    """Solved problems before unsolved ones."""

    examples: int = 2
    """K: solved problems in front."""
    alike: float = 0.3
    """Least cosine of an example's prompt with the row's."""
    chars: int = 1000
    """Characters of an example's prompt, and of its answer, at most."""
    right: float = 0.5
    """Rewards of at least this are successes."""

    def __post_init__(self) -> None:
        checks.whole(self, ("examples",), 1, MOST_EXAMPLES)
        checks.whole(self, ("chars",), 1, MOST_CHARS)
        checks.finite(self, ("alike", "right"))
        if not -1.0 <= self.alike <= 1.0:
            raise ValueError(f"alike must lie between -1 and 1, got {self.alike!r}")

    @property
    def solved_chars(self) -> int:
        """Characters of an answer to keep: one more than are shown, so that a cut is visible."""
        return self.chars + 1

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Sequence[Allocation]:
        """Return the rows in their drawn order, with examples for those that failed."""
        rows = [row_of(len(prompts.rows), rng.seed, ordinal) for ordinal in budget.ordinals]
        return [self._allocation(prompts, row) for row in rows]

    def _allocation(self, prompts: PromptStats, row: int) -> Allocation:
        if not self._failed(prompts.of(row)):
            return Allocation(row)
        chosen = self._nearest(prompts, row)
        if not chosen:
            return Allocation(row, why="all rollouts failed, and nothing like it was solved")
        messages = [m for other in reversed(chosen) for m in self._example(prompts, other)]
        return Allocation(
            row, messages=tuple(messages), why=f"all rollouts failed: solved rows {chosen} in front"
        )

    def _failed(self, stats: RowStats) -> bool:
        rewards = stats.groups[-1].rewards if stats.groups else ()
        return bool(rewards) and max(rewards) < self.right

    def _nearest(self, prompts: PromptStats, row: int) -> list[int]:
        """Return solved rows, the most alike first, ties in order of rows.

        The row itself is left out: its own answer would give it away.
        """
        own = _embedded(prompts.prompts[row])
        solved = [other for other, stats in prompts.stats.items() if stats.solved and other != row]
        near = [
            (round(float(np.dot(own, _embedded(prompts.prompts[other]))), 6), -other)
            for other in solved
        ]
        return [
            -other for cosine, other in heapq.nlargest(self.examples, near) if cosine >= self.alike
        ]

    def _example(self, prompts: PromptStats, row: int) -> tuple[dict[str, str], dict[str, str]]:
        asked, answered = self._cut(prompts.prompts[row]), self._cut(prompts.of(row).solved)
        return {"role": "user", "content": asked}, {"role": "assistant", "content": answered}

    def _cut(self, text: str) -> str:
        return text if len(text) <= self.chars else text[: self.chars] + _CUT


@lru_cache(8192)  # 8 MB; the same rows are compared repeatedly
def _embedded(text: str) -> F32:
    return embed(text)
