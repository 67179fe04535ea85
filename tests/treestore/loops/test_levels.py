"""Ages of steps since they changed, of runs that train; evaluations and pauses do not age."""

from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.loops.levels import StepAges

TRAINING, EVALUATING = rs.RUN_STATE_TRAINING, rs.RUN_STATE_EVALUATING_AFTER


def run(step: int, state: "rs.RunState.ValueType" = TRAINING, run_id: str = "r") -> rs.Run:
    return rs.Run(run_id=run_id, step=step, state=state)


def test_an_age_begins_with_each_step_and_with_training() -> None:
    ages = StepAges()
    assert ages.of([run(0)], 100.0) == {"r": 0.0}
    assert ages.of([run(0)], 130.0) == {"r": 30.0}
    assert ages.of([run(1)], 140.0) == {"r": 0.0}
    assert ages.of([run(1), run(7, run_id="other")], 150.0) == {"r": 10.0, "other": 0.0}
    assert ages.of([run(1), run(7, run_id="other")], 151.0) == {"r": 11.0, "other": 1.0}


def test_time_outside_of_training_does_not_count() -> None:
    ages = StepAges()
    ages.of([run(3)], 0.0)
    assert ages.of([run(3, EVALUATING)], 50.0) == {}
    assert ages.of([run(3)], 60.0) == {"r": 0.0}


def test_a_learner_that_resumed_may_go_back_a_step() -> None:
    ages = StepAges()
    ages.of([run(9)], 0.0)
    assert ages.of([run(8)], 20.0) == {"r": 0.0}
