"""The states of a run and the moves between them.

A run ends SUCCEEDED, FAILED with a cause, or CANCELLED.
"""

from typing import TYPE_CHECKING, TypeAlias

from banyan.v1.runstore_service_pb2 import RunState as S

if TYPE_CHECKING:
    from banyan.v1.runstore_service_pb2 import RunState

    State: TypeAlias = RunState.ValueType
else:
    State: TypeAlias = int  # the generated enum has no class at run time

OVER = frozenset({S.RUN_STATE_SUCCEEDED, S.RUN_STATE_FAILED, S.RUN_STATE_CANCELLED})
WORKING = (
    S.RUN_STATE_STARTING,
    S.RUN_STATE_EVALUATING_BEFORE,
    S.RUN_STATE_TRAINING,
    S.RUN_STATE_EVALUATING_AFTER,
)
_FORWARD: dict[State, frozenset[State]] = {
    S.RUN_STATE_STARTING: frozenset({S.RUN_STATE_EVALUATING_BEFORE, S.RUN_STATE_TRAINING}),
    S.RUN_STATE_EVALUATING_BEFORE: frozenset({S.RUN_STATE_TRAINING}),
    S.RUN_STATE_TRAINING: frozenset({S.RUN_STATE_EVALUATING_AFTER, S.RUN_STATE_SUCCEEDED}),
    S.RUN_STATE_EVALUATING_AFTER: frozenset({S.RUN_STATE_SUCCEEDED}),
    S.RUN_STATE_PAUSED: frozenset(WORKING) | {S.RUN_STATE_CANCELLED},
}
_FROM_ANYWHERE = frozenset({S.RUN_STATE_FAILED, S.RUN_STATE_CANCELLED, S.RUN_STATE_PAUSED})


def name(state: State) -> str:
    """Return the state's name as people read it, such as TRAINING."""
    return S.Name(state).removeprefix("RUN_STATE_")


def over(state: State) -> bool:
    """Return True if the run has ended."""
    return state in OVER


def working(state: State) -> bool:
    """Return True if the run wants processes."""
    return state in WORKING


def allowed(old: State, new: State) -> bool:
    """Return True if a run may move from `old` to `new`."""
    return new in _FORWARD.get(old, frozenset()) or (working(old) and new in _FROM_ANYWHERE)
