"""head-vote: the answer with the largest sum of the head's scores wins, and gets 1.

Paper: Xu et al. 2026, ARRoL, arXiv 2603.24840; Hooper et al. 2025, ETS, arXiv 2502.13575
Formula: winner = argmax over answers a of the sum of p_i over completions i whose answer is a
Left out: simplification of expressions

p_i is the last score of the policy's learned head on the path of completion i. It measures in
evaluations (`eval.votes.weight: head`), with the answers and the ties of `vote`. While the head is
cold, or a path has no score, there is no vote: all get 0, and the part `heard` is the share of
paths with a score.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from banyan.plugins import Row, Scored
from methods.filter import answers
from methods.filter.vote import counted


@dataclass(slots=True)
class HeadVote:
    """Agreement with the answer that wins by the head's scores."""

    needs_heads: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = ("share", "weight", "heard")
    extract: str = "number"
    """Form of an answer, as in `vote`."""
    take: str = "only"
    """Number that counts, as in `vote`."""

    name: str = field(default="head-vote", init=False)
    version: str = field(default="1", init=False)

    def __post_init__(self) -> None:
        answers.check(self.extract, self.take)

    def score_group(
        self, completions: Sequence[str], row: Row, heads: Sequence[float | None]
    ) -> list[Scored]:
        """Return 1 for completions with the winner, else 0, with the share of their answer."""
        # A node may say anything: only a chance is a weight.
        weights = [head for head in heads if head is not None and 0.0 <= head <= 1.0]
        if len(weights) < len(completions):
            return [Scored(0.0, {"heard": len(weights) / len(completions)})] * len(completions)
        given = answers.of(completions, self.extract, self.take)
        return [
            Scored(float(won), {"share": share, "weight": weight, "heard": 1.0})
            for (won, share), weight in zip(counted(given, weights), weights, strict=True)
        ]
