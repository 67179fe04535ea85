"""What may be known of a tree beside its tokens and its leaves' rewards. Estimators read it; none of it is an identity.

A tree that knows nothing of these has `NO_FACTS`. An estimator that needs one of them refuses a group that lacks it, by
name, and says how it can be given: it never guesses.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from banyan.tree import Leaf

Named = Mapping[str, float | str]
_NONE: Mapping[str, float | str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Facts:
    """rewards: own reward of a place inside the tree that is no leaf: of a step, of a program that was repaired later.
    named: numbers and words that a segment carries: `agent`, `state`, a format score.
    parts: named parts of a leaf's score, as its scorers gave them.
    unscorable: places inside a path that were asked for a reward of their own and have none: never a reward of 0.
    """

    rewards: Mapping[Leaf, float] = field(default_factory=dict)
    named: Mapping[bytes, Named] = field(default_factory=dict)
    parts: Mapping[Leaf, Mapping[str, float]] = field(default_factory=dict)
    unscorable: frozenset[Leaf] = frozenset()

    def of_segment(self, segment: bytes, name: str) -> float | str | None:
        """A segment's attribute; None where it has none of that name."""
        return self.named.get(segment, _NONE).get(name)

    def of_leaf(self, leaf: Leaf, name: str) -> float | None:
        """A part of a leaf's score, or a number that its last segment carries; None where there is neither."""
        if leaf in self.parts and name in self.parts[leaf]:
            return self.parts[leaf][name]
        value = self.of_segment(leaf.segment, name)
        return value if isinstance(value, int | float) else None


NO_FACTS = Facts()

STEPS = "steps"
"""A reward at the end of every step: where a tree policy `gives` it, no step goes on after it was scored."""
INSIDE = "inside"
"""A reward of its own at a place inside a path."""


def by_steps(estimator: object) -> bool:
    """Whether rewards of places inside a path count for an estimator: it needs them, or says so (`by_steps`)."""
    needs = getattr(estimator, "needs", ())
    return STEPS in needs or INSIDE in needs or bool(getattr(estimator, "by_steps", False))


def attribute(name: str) -> str:
    """An attribute of every segment that the policy sampled."""
    return f"attribute:{name}"


def part(name: str) -> str:
    """A part of every leaf's score."""
    return f"part:{name}"


def lacking(needs: Collection[str], gives: Collection[str]) -> list[str]:
    """In words, what an estimator needs and nobody gives. A segment that ends with a score has its parts as attributes, so
    where every step does they are there on all."""
    given = set(gives)
    if STEPS in given:
        given |= {
            attribute(name.removeprefix("part:")) for name in gives if name.startswith("part:")
        }
    return [_in_words(need) for need in sorted(set(needs) - given)]


def _in_words(need: str) -> str:
    kind, _, name = need.partition(":")
    return {
        STEPS: "a reward at the end of every step",
        INSIDE: "a reward of its own at a place inside each path",
        "attribute": f"the attribute {name!r} on every segment",
        "part": f"the part {name!r} of every leaf's score",
    }[kind]
