"""Facts of a tree beside its tokens and its leaves' rewards, for estimators.

They belong to no identity. A tree without any has `NO_FACTS`. An estimator that needs one refuses a
group that lacks it, by name and with the remedy; it never guesses.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from banyan.tree import Leaf

Named = Mapping[str, float | str]
_NONE: Mapping[str, float | str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one tree.

    rewards: own reward of a place that is no leaf, such as a step or a program repaired later
    named: numbers and words of a segment: `agent`, `state`, a format score
    parts: named parts of a leaf's score, as its scorers returned them
    unscorable: places inside a path with a requested reward that could not be scored: never 0
    earned: reward of an environment's answer, by its segment, as a part of its paths' rewards
    turns: answers that a path may have; 0 without an environment
    longest_path: tokens that a path may have with its prompt and all answers; 0 for any number
    """

    rewards: "Mapping[Leaf, float]" = field(default_factory=dict)
    named: Mapping[bytes, Named] = field(default_factory=dict)
    parts: "Mapping[Leaf, Mapping[str, float]]" = field(default_factory=dict)
    unscorable: "frozenset[Leaf]" = frozenset()
    earned: Mapping[bytes, float] = field(default_factory=dict)
    turns: int = 0
    longest_path: int = 0

    def of_segment(self, segment: bytes, name: str) -> float | str | None:
        """Return an attribute of a segment; None if it has none of that name."""
        return self.named.get(segment, _NONE).get(name)

    def of_leaf(self, leaf: "Leaf", name: str) -> float | None:
        """Return a part of a leaf's score, else a number of its last segment, else None."""
        if leaf in self.parts and name in self.parts[leaf]:
            return self.parts[leaf][name]
        value = self.of_segment(leaf.segment, name)
        return value if isinstance(value, int | float) else None


NO_FACTS = Facts()

STEPS = "steps"
"""Need of a reward at the end of every step. Where a tree policy `gives` it, no step goes on after
it was scored."""
INSIDE = "inside"
"""Need of a reward of its own at a place inside a path."""


def attribute(name: str) -> str:
    """Return the need of an attribute on every segment that the policy sampled."""
    return f"attribute:{name}"


def part(name: str) -> str:
    """Return the need of a part of every leaf's score."""
    return f"part:{name}"


def lacking(needs: Collection[str], gives: Collection[str]) -> list[str]:
    """Return, in words, the needs of an estimator that nothing gives.

    A segment that ends with a score has the score's parts as attributes, so they are on all
    segments where every step is scored.
    """
    available = set(gives)
    if STEPS in available:
        available |= {
            attribute(name.removeprefix("part:")) for name in gives if name.startswith("part:")
        }
    return [_in_words(need) for need in sorted(set(needs) - available)]


def _in_words(need: str) -> str:
    kind, _, name = need.partition(":")
    return {
        STEPS: "a reward at the end of every step",
        INSIDE: "a reward of its own at a place inside each path",
        "attribute": f"the attribute {name!r} on every segment",
        "part": f"the part {name!r} of every leaf's score",
    }[kind]
