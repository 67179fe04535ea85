"""The moves that a run may make: forward, aside, never back, and never out of an end."""

import pytest

from banyan.v1.runstore_service_pb2 import RunState as S
from services.gateway.domain import state_machine

# `S` is not a dict.
ALL = [S.Value(name) for name in S.keys() if name != "RUN_STATE_UNSPECIFIED"]  # noqa: SIM118
ENDS = [S.RUN_STATE_SUCCEEDED, S.RUN_STATE_FAILED, S.RUN_STATE_CANCELLED]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("to", ALL)
def test_an_end_is_final(end: int, to: int) -> None:
    assert not state_machine.allowed(end, to)


@pytest.mark.parametrize("state", state_machine.WORKING)
def test_any_working_state_may_fail_be_cancelled_or_paused(state: int) -> None:
    assert all(state_machine.allowed(state, to) for to in (*ENDS[1:], S.RUN_STATE_PAUSED))


@pytest.mark.parametrize("state", state_machine.WORKING)
def test_a_paused_run_goes_back_to_where_it_was(state: int) -> None:
    assert state_machine.allowed(S.RUN_STATE_PAUSED, state)
    assert not state_machine.working(S.RUN_STATE_PAUSED) and not state_machine.over(
        S.RUN_STATE_PAUSED
    )


def test_only_the_last_states_succeed() -> None:
    may = [s for s in ALL if state_machine.allowed(s, S.RUN_STATE_SUCCEEDED)]
    assert may == [S.RUN_STATE_TRAINING, S.RUN_STATE_EVALUATING_AFTER]


def test_states_never_go_back() -> None:
    order = list(state_machine.WORKING)
    back = [
        (a, b) for i, a in enumerate(order) for b in order[: i + 1] if state_machine.allowed(a, b)
    ]
    assert back == []
