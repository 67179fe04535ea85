"""The part of a run that is under way, in words and in numbers."""

import pytest

from banyan.progress.run_status import Status, moment, status, work_of
from banyan.progress.time_left import Work
from banyan.recipe import Votes
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from tests.cli.live.news import RECIPE, news

BEFORE = {"before-greedy": 44, "before-sampled": 44}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (gw.WatchRunResponse(), Status("loading the model: learner starting")),
        (news(rs.RUN_STATE_STARTING), Status("loading the model: learner starting")),
        (
            news(rs.RUN_STATE_EVALUATING_BEFORE, 0, done={"before-greedy": 31}),
            Status("evaluating before: greedy 31 of 44, sampled 0 of 44 rows", 31, 88),
        ),
        (
            news(rs.RUN_STATE_TRAINING, 3, done=BEFORE, closed=5),
            Status("step 4 of 40: 5 of 8 groups sampled and scored", 3, 40),
        ),
        (
            news(rs.RUN_STATE_TRAINING, 3, done=BEFORE, closed=5, batches=4),
            Status("step 4 of 40: the learner trains", 3, 40),
        ),
        (
            news(rs.RUN_STATE_TRAINING, 20, done=BEFORE | {"step-20-sampled": 7}),
            Status("evaluating step 20: greedy 0 of 44, sampled 7 of 44 rows", 7, 88),
        ),
        (news(rs.RUN_STATE_TRAINING, 40, done=BEFORE), Status("step 40 of 40 is done", 40, 40)),
        (
            news(rs.RUN_STATE_EVALUATING_AFTER, 40, done=BEFORE | {"after-greedy": 44}),
            Status("evaluating after: greedy 44 of 44, sampled 0 of 44 rows", 44, 88),
        ),
        (
            news(rs.RUN_STATE_EVALUATING_AFTER, 29, done={"after-greedy": 44, "after-sampled": 44}),
            Status("writing the checkpoint", 88, 88),
        ),
        (news(rs.RUN_STATE_PAUSED, 7, done=BEFORE), Status("paused")),
    ],
)
def test_the_part_under_way(message: gw.WatchRunResponse, expected: Status) -> None:
    loads = expected.words.startswith("loading")
    assert status(RECIPE, message, lambda: "learner starting" if loads else "") == expected


def test_a_process_that_loads_is_named_in_every_phase() -> None:
    """After a resume, and when one died and begins again."""
    message = news(rs.RUN_STATE_TRAINING, 3, done=BEFORE)
    loading = Status("loading the model: learner waiting")
    assert status(RECIPE, message, lambda: "learner waiting") == loading


def test_evaluations_by_their_labels() -> None:
    labels = ("before-greedy", "step-20-sampled", "after-greedy", "what-ever")
    assert [moment(label, 40) for label in labels] == [0, 20, 40, None]


def test_the_work_of_a_run() -> None:
    message = news()
    assert work_of(RECIPE, message.run) == Work(steps=40, every=20, rows=88)
    alone = RECIPE.model_copy(
        update={
            "eval": RECIPE.eval.model_copy(update={"samples": 0, "max_rows": 10}),
            "budget": RECIPE.budget.model_copy(update={"minutes": 2.0}),
        }
    )
    assert work_of(alone, message.run) == Work(steps=40, every=20, rows=10, seconds=120.0)
    voted = {"eval": RECIPE.eval.model_copy(update={"votes": Votes()})}
    assert work_of(RECIPE.model_copy(update=voted), message.run).rows == 132
    assert work_of(RECIPE, rs.Run()).rows == 0
