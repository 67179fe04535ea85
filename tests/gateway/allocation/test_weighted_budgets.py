"""Rounds of growth budgets see the rewards that training will see: weighted as the recipe says."""

from pathlib import Path
from typing import Any, cast

from banyan.recipe_loader.load import load
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from services.gateway.allocation.budget_rounds import BudgetRounds

XRPO = Path(__file__).parents[3] / "recipes" / "xrpo.yaml"


def test_a_trees_rewards_are_weighted() -> None:
    scorers = "filter=[{name: number, weight: 3}, {name: length, settings: {most: 9}, weight: -1}]"
    rounds = BudgetRounds(cast(Any, None), load(XRPO, [scorers]), "run-1")
    facts = rs.RoomFacts(tree_id=b"t", growing=True, leaves=2)
    for end, values in ((1, {"number": 1.0, "length": 0.5}), (2, {"number": 0.5})):
        for scorer, value in values.items():
            score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value)
            facts.scores.add(leaf={"segment": b"s", "end": end}, scorer=scorer, score=score)
    assert rounds._tree_budget(facts).rewards == ((3.0 - 0.5) / 3.0,)
