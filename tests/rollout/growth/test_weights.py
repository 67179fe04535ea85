"""Rewards of a growing tree are weighted as its spec says."""

from services.rollout.growth.scores import LeafScore
from tests.rollout.growing import ENDING, IID, engine, grow, spec


def test_a_tree_policy_sees_weighted_rewards() -> None:
    weights = {"number": 3.0, "length": -1.0, "watched": 0.0}
    grower, _ = grow(spec(IID, {"width": 2}, 9, scorers=3, weights=weights), engine(ENDING))
    first, second = grower.leaves
    scores = [
        LeafScore(first, "number", 1.0),
        LeafScore(first, "length", 0.5),
        LeafScore(first, "watched", None),
        LeafScore(second, "number", 0.5),
        LeafScore(second, "length", 0.0),
    ]
    grower.scored(scores)
    assert grower.rewards == {first: (3.0 - 0.5) / 3.0}, "one of the second's is missing"
    grower.scored([*scores, LeafScore(second, "watched", 7.0)])
    assert grower.rewards[second] == 0.5
