"""Scores and growth budgets, read from messages of the store."""

import pytest

from banyan.plugins import GrowthBudget
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from services.rollout.growth import grants, scores
from services.rollout.growth.grants import BudgetGrant
from services.rollout.growth.scores import LeafScore, TextRepair

PLACE = tree_pb2.LeafRef(segment=b"s", end=3)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (
            tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=0.0),
            LeafScore(Leaf(b"s", 3), "number", 0.0, version="2"),
        ),
        (
            tree_pb2.Score(state=tree_pb2.SCORE_STATE_UNSCORABLE, value=0.5),
            LeafScore(Leaf(b"s", 3), "number", None, version="2"),
        ),
        (
            tree_pb2.Score(
                state=tree_pb2.SCORE_STATE_SCORED,
                value=0.25,
                repair=tree_pb2.Repair(keep=0, text="b", step=1, steps=4),
            ),
            LeafScore(Leaf(b"s", 3), "number", 0.25, TextRepair(0, "b", 1, 4), "2"),
        ),
    ],
)
def test_a_score_is_read(score: tree_pb2.Score, expected: LeafScore) -> None:
    message = tree_pb2.ScoredLeaf(leaf=PLACE, scorer="number", scorer_version="2", score=score)
    assert scores.from_wire([message]) == [expected]


def test_a_grant_survives_the_wire_and_replaces_the_one_before() -> None:
    grant = BudgetGrant(round=2, leaves=9, final=True)
    assert grants.from_wire(grant.to_wire()) == grant
    before = GrowthBudget(max_leaves=4, step=7)
    assert grant.apply(before) == GrowthBudget(max_leaves=9, step=7, final=True)
