"""A session of Python in a tree: each branch goes on from the variables at its fork."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from banyan.digest import blake
from banyan.environments.observation import ToolOutcome
from banyan.environments.receipts import Receipt
from services.verifier.environments.actions import Actions
from services.verifier.jail.chosen_sessions import ChosenSessions
from tests.verifier.environments.test_actions import KEY, Store, acted


@pytest_asyncio.fixture
async def sessions(proof: Path) -> AsyncIterator[ChosenSessions]:
    """Sessions that were proven on this machine."""
    made = ChosenSessions(proof, KEY)
    yield made
    await made.close()


async def said(actions: Actions, store: Store, action: bytes, code: str) -> tuple[Receipt, str]:
    return await acted(actions, store, action, f"<python>{code}</python>")


async def test_branches_fork_the_variables(sessions: ChosenSessions) -> None:
    store = Store(environment="python")
    actions = Actions(store, KEY, sessions)
    root = store.add(b"a" * 32)
    assert (await said(actions, store, root, "x = [1]\nprint(x)"))[1] == "[1]"
    texts = []
    for number in range(3):
        branch = store.add(bytes([number]) * 32, root)
        texts.append((await said(actions, store, branch, f"x.append({number})\nprint(x)"))[1])
    assert texts == ["[1, 0]", "[1, 1]", "[1, 2]"]


async def test_another_verifier_makes_lost_states_again(
    sessions: ChosenSessions, proof: Path
) -> None:
    store = Store(environment="python")
    parent = b""
    for number, code in enumerate(
        ["import random\nx = random.random()", "def f(a): return a + x", "y = f(1)"]
    ):
        parent = store.add(blake(bytes([number])), parent)
        await said(Actions(store, KEY, sessions), store, parent, code)
    other = ChosenSessions(proof, KEY)
    try:
        last = store.add(b"z" * 32, parent)
        receipt, text = await said(Actions(store, KEY, other), store, last, "print(y == 1 + x)")
    finally:
        await other.close()
    assert text == "True" and receipt.observation.outcome is ToolOutcome.OK


async def test_errors_and_limits_are_answers_and_the_path_goes_on(
    sessions: ChosenSessions,
) -> None:
    store = Store(environment="python")
    actions = Actions(store, KEY, sessions)
    parent = b""
    for number, (code, part, outcome) in enumerate(
        [
            ("x = 1", "(no output)", ToolOutcome.OK),
            ("1 / 0", "ZeroDivisionError", ToolOutcome.FAILED),
            ("open('/etc/passwd')", "Error", ToolOutcome.FAILED),
            ("import socket", "Error", ToolOutcome.FAILED),
            ("import os\nos.kill(os.getpid(), 9)", "Error", ToolOutcome.FAILED),
            ("while True: pass", "error: the time is over", ToolOutcome.CPU),
            ("y = 'a' * 10**9", "error: the memory is full", ToolOutcome.MEMORY),
            ("print('a' * 10**6)", "error: too much output", ToolOutcome.OUTPUT),
            ("z = 'a' * 10**5", "error: the memory is full", ToolOutcome.MEMORY),
            ("print(x)", "1", ToolOutcome.OK),
            ("print(z)", "NameError", ToolOutcome.FAILED),
        ]
    ):
        parent = store.add(blake(bytes([number])), parent)
        receipt, text = await said(actions, store, parent, code)
        assert part in text and receipt.observation.outcome is outcome, (code, text)
