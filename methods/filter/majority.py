"""majority: the most frequent answer of a group is its label, and its completions get 1.

Paper: Zuo et al. 2025, TTRL, arXiv 2504.16084; ECHO, arXiv 2602.02150
Formula: reward = 1 if the answer is the label, else 0; ratio = votes of the label / N
Left out: simplification of expressions

No row needs an answer. N counts all completions, also those without an answer. The label that comes
first wins a tie. If no completion has an answer there is no label, the ratio is 0, and so is every
reward.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from banyan.digest import blake
from banyan.plugins import Row, Scored
from methods.filter import answers


@dataclass(slots=True)
class Majority:
    """Agreement with the most frequent answer."""

    parts: ClassVar[tuple[str, ...]] = ("majority_ratio",)
    extract: str = "number"
    """Form of an answer: number, tag (content of the last <answer> tag) or text (the whole
    completion). Plain fractions in tags and texts are reduced; other expressions are compared as
    written."""
    take: str = "only"
    """Number that counts: the completion's only one (several are no answer), or its last, as in
    `number`."""

    name: str = field(default="majority", init=False)
    version: str = field(default="3", init=False)

    def __post_init__(self) -> None:
        answers.check(self.extract, self.take)

    def score_group(self, completions: Sequence[str], row: Row) -> list[Scored]:
        """Return 1 for the label, else 0, with the share of its votes and a number for its text."""
        given = answers.of(completions, self.extract, self.take)
        label, ratio = vote(given)
        parts = {"majority_ratio": ratio} | ({} if label is None else {"label_hash": hashed(label)})
        return [Scored(float(label is not None and answer == label), parts) for answer in given]


def vote(given: Sequence[str | None]) -> tuple[str | None, float]:
    """Return the label, and its share of all answers; None and 0 without any."""
    votes = Counter(answer for answer in given if answer is not None)
    if not votes:
        return None, 0.0
    label, count = votes.most_common(1)[0]  # of equals the first
    return label, count / len(given)


def hashed(label: str) -> float:
    """Return 48 bits of a text's digest as a number, since parts of a score are numbers."""
    return float(int.from_bytes(blake(label.encode(errors="surrogatepass"))[:6], "little"))
