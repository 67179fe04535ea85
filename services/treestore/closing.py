"""When a tree is closed, and what its leaves are worth then: pure decisions over its leaves and scores (PROTOCOL 4)."""

from collections.abc import Mapping, Sequence

from banyan.tree import Leaf
from services.treestore.rows import SCORED, LeafRow, ScoreRow

Scores = Mapping[tuple[Leaf, str], ScoreRow]


def listed(leaves: Mapping[Leaf, LeafRow]) -> list[Leaf]:
    """The leaves that TreeGrown named: the ones that must be scored."""
    return sorted(leaf for leaf, row in leaves.items() if row.listed)


def owed(leaves: Mapping[Leaf, LeafRow], scorers: Sequence[str], scores: Scores) -> list[tuple[Leaf, str]]:
    """The scores that are still missing. A grown tree is closed when this is empty."""
    return [(leaf, scorer) for leaf in listed(leaves) for scorer in scorers if (leaf, scorer) not in scores]


def unscored(leaves: Mapping[Leaf, LeafRow], scorers: Sequence[str], scores: Scores, *, grown: bool) -> list[Leaf]:
    """Leaves that lack a score: of a grown tree those that it lists, of a growing one all that are accepted."""
    known = listed(leaves) if grown else sorted(leaves)
    return [leaf for leaf in known if any((leaf, scorer) not in scores for scorer in scorers)]


def rewards(leaves: Mapping[Leaf, LeafRow], scorers: Sequence[str], scores: Scores) -> dict[Leaf, float | None]:
    """Reward of each listed leaf: the mean of its scorers' values; None where one found it unscorable or none was asked."""
    return {leaf: _reward([scores[(leaf, scorer)] for scorer in scorers]) for leaf in listed(leaves)}


def _reward(scores: Sequence[ScoreRow]) -> float | None:
    if not scores or any(score.state != SCORED for score in scores):
        return None
    return sum(score.value for score in scores) / len(scores)
