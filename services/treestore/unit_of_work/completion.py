"""Completion of trees: the scores that a grown tree owes, and the rewards of its leaves. Pure.

A grown tree owes a score for each leaf that TreeGrown listed, and for each place inside the paths
to them that LeafFinished or TreeGrown put before scorers: a path is scored there and continues.
Scorers of whole groups score leaves only. The rules of rewards are those of `banyan.reward`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from banyan import reward
from banyan.tree import Leaf
from services.treestore.unit_of_work.rows import SCORED, LeafRow, ScoreRow

Scores = Mapping[tuple[Leaf, str], ScoreRow]


@dataclass(frozen=True, slots=True)
class RowVote:
    """The vote of an evaluation's row, against a leaf of the row drawn at random.

    value: mean reward of the leaves with the answer that won; those with the same answer may differ
        where a scorer sees more than the answer
    leaf_value: mean reward of all leaves
    leaf_correct: share of all leaves whose reward is at least 1
    """

    value: float
    leaf_value: float
    leaf_correct: float


def listed(leaves: Mapping[Leaf, LeafRow]) -> list[Leaf]:
    """Return the leaves that TreeGrown listed, which must be scored."""
    return sorted(leaf for leaf, row in leaves.items() if row.listed)


def marked(leaves: Mapping[Leaf, LeafRow]) -> list[Leaf]:
    """Return the places that were put before scorers and are no leaves of the tree."""
    return sorted(leaf for leaf, row in leaves.items() if not row.listed)


def inside(leaves: Mapping[Leaf, LeafRow], above: reward.Above) -> list[Leaf]:
    """Return the marked places from which a path to a listed leaf continues."""
    return sorted(reward.inner(marked(leaves), listed(leaves), above))


def owed(
    leaves: Mapping[Leaf, LeafRow],
    scorers: Sequence[str],
    scores: Scores,
    *,
    inside: Collection[Leaf] = (),
    groups: Collection[str] = (),
) -> list[tuple[Leaf, str]]:
    """Return the missing scores as pairs of place and scorer; a grown tree without any is closed.

    inside: places inside paths that must be scored
    groups: those of `scorers` that score whole groups
    """
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
    """Return the places that lack a score.

    Of a grown tree the listed leaves and `inside` count, of a growing one all accepted places.
    """
    places = [*listed(leaves), *inside] if grown else sorted(leaves)
    return list(dict.fromkeys(leaf for leaf, _ in reward.owed(places, scorers, scores)))


def rewards(
    leaves: Mapping[Leaf, LeafRow],
    scorers: Sequence[str],
    scores: Scores,
    weights: reward.Weights = reward.EQUAL,
) -> dict[Leaf, float | None]:
    """Return the reward of each listed leaf.

    It is None where a scorer that counts found the leaf unscorable, a score is missing, or there
    are no scorers.
    """
    leaves_listed = listed(leaves)
    values = [
        (leaf, scorer, row.value if row.state == SCORED else None)
        for leaf in leaves_listed
        for scorer in scorers
        if (row := scores.get((leaf, scorer))) is not None
    ]
    by_leaf = reward.rewards(values, len(scorers), weights)
    return {leaf: by_leaf.get(leaf) for leaf in leaves_listed}


def vote(rewards: Mapping[Leaf, float | None], scores: Scores, scorer: str) -> RowVote | None:
    """Return the vote by a scorer that gives 1 to the leaves with the answer that won.

    It is None where the scorer let no leaf win, or no leaf that won has a reward.
    """
    values = {leaf: value for leaf, value in rewards.items() if value is not None}
    winners = [value for leaf, value in values.items() if _won(scores.get((leaf, scorer)))]
    if not winners:
        return None
    right = sum(value >= 1.0 for value in values.values())
    return RowVote(
        value=reward.mean(winners),
        leaf_value=reward.mean(values.values()),
        leaf_correct=right / len(values),
    )


def _won(score: ScoreRow | None) -> bool:
    return score is not None and score.state == SCORED and score.value >= 1.0
