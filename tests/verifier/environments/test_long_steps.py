"""Steps that take longer than any caller waits: run once, and gone when they end."""

import asyncio
from typing import Any

import pytest

from banyan.programs.run import Outcome
from banyan.programs.session import SessionResult, Task
from services.verifier.environments.actions import Actions
from tests.verifier.environments.test_actions import KEY, TREE, Store, acted

CALL = "<python>1</python>"


class Held:
    """Sessions whose runs end when they are let go."""

    def __init__(self) -> None:
        self.runs, self.go = list[str](), asyncio.Event()

    async def do(self, task: Task) -> SessionResult:
        self.runs.append(task.code)
        await self.go.wait()
        return SessionResult(Outcome.DONE, b"said", b"", b"state")


async def gone(actions: Actions, action: bytes) -> None:
    """Ask for an answer as a caller whose connection breaks."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(actions.act(TREE, 1, action, call=CALL, deadline_s=1.0), 0.01)


async def test_callers_who_come_again_share_the_step_that_is_under_way() -> None:
    store, sessions = Store(environment="python"), Held()
    actions = Actions(store, KEY, sessions)
    action = store.add(b"a" * 32)
    for _ in range(3):
        await gone(actions, action)
    sessions.go.set()
    _, text = await acted(actions, store, action, CALL)
    assert text == "said" and sessions.runs == ["1"] and store.reads == 1


async def test_nothing_is_left_of_a_step_that_nobody_waits_for(eventually: Any) -> None:
    store, sessions = Store(environment="python"), Held()
    actions = Actions(store, KEY, sessions)
    await gone(actions, store.add(b"a" * 32))
    assert len(actions._asked._works) == 1
    sessions.go.set()
    await eventually(lambda: not actions._asked._works, 2.0, "the end of the step")
