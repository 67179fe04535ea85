"""vote: the answer that most completions of a row give wins, and those that give it get 1.

Paper: Wang et al. 2023, self-consistency, arXiv 2203.11171
Formula: winner = argmax over answers a of the number of completions whose answer is a
Left out: simplification of expressions

It measures in evaluations (`eval.votes`). Completions without an answer do not vote; where none has
an answer, having none is the answer. The answer that comes first wins a tie.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from banyan.plugins import Row, Scored
from methods.filter import answers


@dataclass(slots=True)
class Vote:
    """Agreement with the answer that wins."""

    parts: ClassVar[tuple[str, ...]] = ("share",)
    extract: str = "number"
    """Form of an answer: number, tag (content of the last <answer> tag) or text (the whole
    completion), as in `majority`."""
    take: str = "only"
    """Number that counts: the completion's only one (several are no answer), or its last, as in
    `number`."""

    name: str = field(default="vote", init=False)
    version: str = field(default="1", init=False)

    def __post_init__(self) -> None:
        answers.check(self.extract, self.take)

    def score_group(self, completions: Sequence[str], row: Row) -> list[Scored]:
        """Return 1 for completions with the winner, else 0, with the share of their answer."""
        given = answers.of(completions, self.extract, self.take)
        return [
            Scored(float(won), {"share": share})
            for won, share in counted(given, [1.0] * len(given))
        ]


def counted(given: Sequence[str | None], weights: Sequence[float]) -> list[tuple[bool, float]]:
    """Return for each answer whether it wins, and its share of all weights that voted.

    given: answers; None for a completion without one, whose share is 0 unless no other has one
    weights: finite, from 0; one for each answer
    """
    mute = all(answer is None for answer in given)
    weights_of: dict[str | None, list[float]] = {}
    for answer, weight in zip(given, weights, strict=True):
        if mute or answer is not None:
            weights_of.setdefault(answer, []).append(weight)
    # Exact sums, so that the order of completions makes no winner.
    sums = {answer: math.fsum(each) for answer, each in weights_of.items()}
    total = math.fsum(sums.values())
    winner = max(sums, key=sums.__getitem__, default=None)  # of equals the first
    return [(answer == winner, sums.get(answer, 0.0) / total if total else 0.0) for answer in given]
