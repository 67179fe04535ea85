"""When a tree is closed, and what its leaves are worth then: pure decisions over its leaves and scores (banyan/reward.py).

A grown tree owes a score for each leaf that TreeGrown listed, and for each place inside their paths that LeafFinished or
TreeGrown put before scorers: a path is scored there, and goes on. Scorers of whole groups compare leaves alone.
"""

from collections.abc import Collection, Mapping, Sequence

from banyan import reward
from banyan.tree import Leaf
from services.treestore.unit_of_work.rows import SCORED, LeafRow, ScoreRow

Scores = Mapping[tuple[Leaf, str], ScoreRow]


def listed(leaves: Mapping[Leaf, LeafRow]) -> list[Leaf]:
    """The leaves that TreeGrown named: the ones that must be scored."""
    return sorted(leaf for leaf, row in leaves.items() if row.listed)


def marked(leaves: Mapping[Leaf, LeafRow]) -> list[Leaf]:
    """The places that were put before scorers, and are no leaves of the tree."""
    return sorted(leaf for leaf, row in leaves.items() if not row.listed)


def inside(leaves: Mapping[Leaf, LeafRow], above: reward.Above) -> list[Leaf]:
    """Those of the marked places that a path to a listed leaf goes on from."""
    return sorted(reward.inner(marked(leaves), listed(leaves), above))


def owed(
    leaves: Mapping[Leaf, LeafRow],
    scorers: Sequence[str],
    scores: Scores,
    inside: Collection[Leaf] = (),
    groups: Collection[str] = (),
) -> list[tuple[Leaf, str]]:
    """The scores that are still missing. A grown tree is closed when this is empty. groups: scorers of whole groups."""
    alone = [scorer for scorer in scorers if scorer not in groups]
    return [*reward.owed(listed(leaves), scorers, scores), *reward.owed(inside, alone, scores)]


def unscored(
    leaves: Mapping[Leaf, LeafRow],
    scorers: Sequence[str],
    scores: Scores,
    *,
    grown: bool,
    inside: Collection[Leaf] = (),
) -> list[Leaf]:
    """Places that lack a score: of a grown tree those that it lists and those inside, of a growing one all accepted."""
    known = [*listed(leaves), *inside] if grown else sorted(leaves)
    return list(dict.fromkeys(leaf for leaf, _ in reward.owed(known, scorers, scores)))


def rewards(
    leaves: Mapping[Leaf, LeafRow], scorers: Sequence[str], scores: Scores
) -> dict[Leaf, float | None]:
    """Reward of each listed leaf; None where a scorer found it unscorable, one is missing, or none was asked."""
    known = listed(leaves)
    said = [
        (leaf, scorer, row.value if row.state == SCORED else None)
        for leaf in known
        for scorer in scorers
        if (row := scores.get((leaf, scorer))) is not None
    ]
    found = reward.rewards(said, len(scorers))
    return {leaf: found.get(leaf) for leaf in known}
