"""The check that some step changed the weights, over pages of policies."""

from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as runs
from services.gateway.runs.applied_steps import Applied


def stored(number: int, **metrics: float) -> runs.StoredPolicy:
    return runs.StoredPolicy(number=number, published=events_pb2.PolicyPublished(metrics=metrics))


EQUAL = {"applied": 0.0, "zero_variance_share": 1.0, "reward": 0.25}


def test_a_policy_that_says_nothing_takes_nothing_back() -> None:
    """The policy of a restarted learner is no step: it follows them and has no metrics."""
    known = Applied().after([stored(1), stored(2, **EQUAL), stored(3)])
    assert known.number == 3 and "all rewards were equal (mean 0.25 " in known.missing(1)
    assert known.after([stored(4)]).missing(1) == known.missing(1)


def test_nothing_is_missing_before_a_step_was_looked_at_and_once_one_was_applied() -> None:
    assert Applied().missing(0) == Applied().after([stored(1)]).missing(0) == ""
    known = Applied().after([stored(1), stored(2, applied=1.0)])
    assert known.any and known.after([stored(3, **EQUAL)]).missing(2) == ""


def test_where_no_path_acted_the_model_has_to_learn_how() -> None:
    known = Applied().after([stored(1, **EQUAL)])
    assert "no path made an action that environment maze could" in known.missing(1, "maze")
    acted = known.after([stored(2, **EQUAL, turns_per_path=0.5)])
    assert "all rewards were equal" in acted.missing(2, "maze")


def test_the_cause_is_that_of_the_newest_step() -> None:
    known = Applied().after([stored(1, applied=0.0, not_finite=1.0)])
    assert "not finite" in known.missing(1)
    assert "all rewards were equal" in known.after([stored(2, **EQUAL)]).missing(2)
