"""Tokens of trees against independent samples of the same leaves."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from banyan.segment import Kind
from banyan.tree import Leaf, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeTokens:
    """Tokens of one tree or of several, without prompts.

    leaves: number of leaves
    forks: number of places inside answers at which paths part
    sampled: tokens that the policy sampled, those on no leaf's path included
    paths: answer tokens of all leaves' paths: the need of independent samples of the same leaves
    """

    leaves: int = 0
    forks: int = 0
    sampled: int = 0
    paths: int = 0

    @property
    def saved(self) -> float:
        """Share of the independent samples' tokens that the trees save; below 0 if they cost
        more."""
        return 1.0 - self.sampled / self.paths if self.paths else 0.0


def tokens_of(tree: Tree, leaves: Sequence[Leaf]) -> TreeTokens:
    """Return the tokens of a grown tree."""
    return TreeTokens(
        leaves=len(leaves),
        forks=forks(tree),
        sampled=sum(len(segment) for segment in tree if segment.kind is Kind.POLICY),
        paths=sum(tree.answer_length(leaf.segment, leaf.end) for leaf in leaves),
    )


def total(parts: Iterable[TreeTokens]) -> TreeTokens:
    """Return the sums over trees."""
    known = list(parts)
    return TreeTokens(
        leaves=sum(part.leaves for part in known),
        forks=sum(part.forks for part in known),
        sampled=sum(part.sampled for part in known),
        paths=sum(part.paths for part in known),
    )


def forks(tree: Tree) -> int:
    """Return the number of places after the prompt at which paths part."""
    root = tree.root
    below = [s for s in tree if s.parent and root is not None and s.parent != root.id]
    places = Counter((segment.parent, segment.fork) for segment in below)
    return sum(
        count > 1 or fork < len(tree.segments[parent]) for (parent, fork), count in places.items()
    )
