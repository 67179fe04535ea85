"""Majority vote: the answer that most completions of a group give is its label, and whoever gives it gets 1 (TTRL, Zuo et
al. 2025, arXiv 2504.16084; ECHO, card 1). No row needs an answer.

The ratio is the label's votes over all N completions, those without an answer among them. The label that comes first wins a
tie. Where no completion has an answer there is no label, the ratio is 0, and so is every reward.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from banyan.digest import blake
from banyan.plugins import Row, Scored
from methods.filter.answers import EXTRACTORS


@dataclass(slots=True)
class Majority:
    """Agreement with the most frequent answer."""

    parts: ClassVar[tuple[str, ...]] = ("majority_ratio",)
    extract: str = "number"
    """What a completion's answer is: number, tag (what stands in the last <answer> tag) or text (all of it). Plain
    fractions in tags and texts are reduced; other expressions are compared as they are written."""
    take: str = "only"
    """Of numbers: the completion's only one (several are no answer), or its last, as `number` does."""

    name: str = field(default="majority", init=False)
    version: str = field(default="2", init=False)

    def __post_init__(self) -> None:
        if self.extract not in EXTRACTORS:
            raise ValueError(f"extract must be one of {', '.join(EXTRACTORS)}, got {self.extract!r}")
        if self.take not in ("only", "last"):
            raise ValueError(f"take must be only or last, got {self.take!r}")

    def score_group(self, completions: Sequence[str], row: Row) -> list[Scored]:
        """1 for the label, else 0; with the share of its votes, and the label as a number that stands for its text."""
        answers = [EXTRACTORS[self.extract](completion, self.take) for completion in completions]
        label, ratio = vote(answers)
        parts = {"majority_ratio": ratio} | ({} if label is None else {"label_hash": hashed(label)})
        return [Scored(float(label is not None and answer == label), parts) for answer in answers]


def vote(answers: Sequence[str | None]) -> tuple[str | None, float]:
    """The label, and its votes over all answers; None and 0 where there is none."""
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return None, 0.0
    label, count = votes.most_common(1)[0]  # of equals the first that came
    return label, count / len(answers)


def hashed(label: str) -> float:
    """48 bits of a text's digest: parts of a score are numbers."""
    return float(int.from_bytes(blake(label.encode())[:6], "little"))
