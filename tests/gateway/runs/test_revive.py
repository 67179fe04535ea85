"""A FAILED run can be resumed where it can go on, and not where it would fail again at once."""

from typing import Any

import pytest

from banyan.v1.runstore_service_pb2 import RunState as S
from services.gateway.runs.decide import RunFacts
from services.gateway.runs.evaluation import Measured
from services.gateway.runs.revive import uncured
from services.gateway.runs.staleness_gate import GroupCounts

TRAINING = {
    "state": S.RUN_STATE_TRAINING,
    "counts": GroupCounts(step=1, batches=1, open=0, closed=0, scored=8, leaves=8),
}
DONE = GroupCounts(step=3, batches=3, open=0, closed=0, scored=8, leaves=8)


def why(recipe_of: Any, recipe: dict[str, Any] | None = None, **facts: Any) -> str:
    return uncured(
        recipe_of(**(recipe or {"task": {"holdout": 0.0}})), RunFacts(**{**TRAINING, **facts})
    )


def test_processes_that_were_given_up_are_tried_again(recipe_of) -> None:
    assert (
        why(
            recipe_of,
            given_up=("learner 0 ended too often",),
            hopeless="40 groups in a row were dropped",
        )
        == ""
    )
    assert why(recipe_of, state=S.RUN_STATE_STARTING, counts=None) == ""


def test_what_is_left_to_do_is_done(recipe_of) -> None:
    assert why(recipe_of, counts=DONE) == ""


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (
            {"counts": DONE, "fruitless": "none of the 3 steps changed the weights"},
            "none of the 3 steps",
        ),
        (
            {"counts": GroupCounts(step=3, batches=3, open=0, closed=0, leaves=8)},
            "no sample of its 3 batches has a score",
        ),
        (
            {"counts": GroupCounts(step=3, batches=3, open=0, closed=0)},
            "no tree of its 3 batches has a leaf",
        ),
    ],
)
def test_a_run_that_taught_nothing_is_over(recipe_of, facts: dict[str, Any], cause: str) -> None:
    assert why(recipe_of, **facts).startswith(cause)


def test_time_that_is_over_stays_over(recipe_of) -> None:
    recipe = {"task": {"holdout": 0.0}, "budget": {"steps": 3, "minutes": 2.0}}
    facts = {"state": S.RUN_STATE_STARTING, "counts": None}
    assert why(recipe_of, recipe, live_minutes=3.0, **facts).startswith(
        "budget.minutes: 2 minutes are over"
    )
    assert why(recipe_of, recipe, live_minutes=1.0, **facts) == ""


def test_an_evaluation_that_no_scorer_scored_stays_without_a_value(recipe_of) -> None:
    rows = {"before-greedy": Measured(4, 4, 0), "before-sampled": Measured(4, 4, 0)}
    facts = {
        "state": S.RUN_STATE_EVALUATING_BEFORE,
        "counts": GroupCounts(0, 0, 0, 0),
        "evals": rows,
        "held_out": 4,
    }
    assert why(recipe_of, {}, **facts) == "evaluation before-greedy: no row could be scored"


def test_a_run_that_would_fail_in_the_state_after_the_next_is_told_so_now(recipe_of) -> None:
    rows = {"before-greedy": Measured(4, 4, 0), "before-sampled": Measured(4, 4, 0)}
    begins = {"state": S.RUN_STATE_STARTING, "counts": GroupCounts(0, 0, 0, 0)}
    assert (
        why(recipe_of, {}, **begins, evals=rows, held_out=4)
        == "evaluation before-greedy: no row could be scored"
    )
    assert why(recipe_of, {}, **begins, held_out=4) == ""
    taught_nothing = {
        **begins,
        "counts": DONE,
        "fruitless": "none of the 3 steps changed the weights",
    }
    assert why(recipe_of, **taught_nothing).startswith("none of the 3 steps")
