"""Environments: what answers a path's actions, as a function of its state."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Protocol

from banyan.environments.observation import Effect, ToolOutcome
from banyan.plugins.filter import Row
from banyan.programs.session import SessionResult, Task


@dataclass(frozen=True, slots=True)
class Answer:
    """An environment's answer to an action.

    text: what the path goes on with
    state: the state that the action left; at most 64 KiB
    reward: reward of the step
    done: whether the episode is over
    outcome: how the step ended
    effect: what the step changed
    anchor: name of the state for estimators of steps
    """

    text: str
    state: bytes = b""
    reward: float = 0.0
    done: bool = False
    outcome: ToolOutcome = ToolOutcome.OK
    effect: Effect = Effect.NONE
    anchor: bytes = b""


# Environments that are Banyan's own pure code, with the classes that their names must lead to. They
# run in the verifier's process, so no other code may be one, whatever is registered.
OURS: Mapping[str, str] = {
    "calculator": "methods.environment.calculator:Calculator",
    "python": "methods.environment.python:Python",
}

# Environments of Banyan's own that run like a user's class: in children of the verifier.
HOSTED: Mapping[str, str] = {
    "sql": "methods.environment.sql:Sql",
    "search": "methods.environment.search:Search",
    "tools": "methods.environment.tools:Tools",
}


class _Resettable(Protocol):
    """An environment whose state is bytes: two actions behind one place act on two copies.

    Pure: equal states and actions have equal answers, and all draws come from the seed.

    end: the mark that ends an action; a path that samples it stops, and is answered
    """

    name: str
    version: str
    end: str

    def about(self) -> str:
        """Return the text that tells a model how to act."""
        ...

    def reset(self, row: Row, seed: int) -> bytes:
        """Return the state before the first action. Raises ValueError for an unusable row."""
        ...


class SessionEnvironment(_Resettable, Protocol):
    """An environment that runs code of an action in a session, which the verifier has."""

    def turn(self, state: bytes, action: str) -> Generator[Task, SessionResult, Answer]:
        """Yield runs one after the other, each for its result; return the answer."""
        ...


class Environment(_Resettable, Protocol):
    """An environment that answers by itself."""

    def step(self, state: bytes, action: str) -> Answer:
        """Return the answer to an action, which may be any text."""
        ...
