"""Work for joined nodes: shared by equal requests, bounded, and gone with its node."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from banyan.environments.receipts import Receipt
from banyan.errors import TemporaryError
from services.verifier.environments import asked as module
from services.verifier.environments.asked import OURS, Asked, Caller
from tests.banyan.environments.test_observation import RECEIPT

NODE, OTHER = Caller("run", "n-1"), Caller("run", "n-2")
KEY = (b"t" * 32, 1, b"a" * 32)
Eventually = Callable[..., Awaitable[None]]


class Step:
    """A step that ends when it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.begun = self.ended = 0

    async def __call__(self) -> tuple[Receipt, str]:
        self.begun += 1
        try:
            await self.may.wait()
            return RECEIPT, str(self.begun)
        finally:
            self.ended += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GONE_S", 0.05)
    monkeypatch.setattr(module, "_SILENT_S", 0.4)


async def test_equal_requests_share_an_answer_and_those_of_others_do_not(
    eventually: Eventually,
) -> None:
    asked, step = Asked(), Step()
    tasks = [
        asyncio.create_task(asked.answer(caller, KEY, step, 10.0))
        for caller in (NODE, NODE, OTHER, OURS, OURS)
    ]
    await eventually(lambda: step.begun == 3, 5.0, "a step for each caller")
    step.may.set()
    found = await asyncio.gather(*tasks)
    assert found[0] == found[1] and found[3] == found[4] and step.begun == 3


async def test_a_step_ends_soon_after_its_node_is_gone(eventually: Eventually) -> None:
    asked, step = Asked(), Step()
    tasks = [asyncio.create_task(asked.answer(NODE, KEY, step, 10.0)) for _ in range(2)]
    await eventually(lambda: step.begun == 1, 5.0, "the step")
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    waited = loop.create_future()
    loop.call_later(0.2, waited.set_result, None)
    await waited
    assert step.ended == 0, "somebody waits still"
    tasks[1].cancel()
    await eventually(lambda: step.ended == 1, 5.0, "the end of the step")


async def test_a_node_that_asks_again_finds_its_step(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, step = Asked(), Step()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_SILENT_S", 60.0)
        with pytest.raises(TemporaryError, match="ask again"):
            await asked.answer(NODE, KEY, step, 0.01)
    await asyncio.sleep(0.2)  # longer than one that is gone has
    again = asyncio.create_task(asked.answer(NODE, KEY, step, 10.0))
    await asyncio.sleep(0)
    step.may.set()
    assert (await again)[1] == "1" and step.begun == 1  # type: ignore[index]
    silent = Step()
    with pytest.raises(TemporaryError, match="ask again"):
        await asked.answer(NODE, KEY, silent, 0.01)
    await eventually(lambda: silent.ended == 1, 5.0, "the end of a step that nobody asks for")


async def test_a_node_that_comes_back_while_its_step_is_being_ended_gets_another(
    eventually: Eventually,
) -> None:
    """A child takes a while to end; the end of the first step is no end of the second call."""
    asked, step, ends = Asked(), Step(), asyncio.Event()

    async def slow_to_end() -> tuple[Receipt, str]:
        try:
            return await step()
        except asyncio.CancelledError:
            await ends.wait()
            raise

    gone = asyncio.create_task(asked.answer(NODE, KEY, slow_to_end, 10.0))
    await eventually(lambda: step.begun == 1, 5.0, "the step")
    gone.cancel()
    await eventually(lambda: step.ended == 1, 5.0, "the end of the step")
    with pytest.raises(TemporaryError, match="ask again"):
        await asked.answer(NODE, KEY, step, 0.05)  # it would run beside the one before
    again = asyncio.create_task(asked.answer(NODE, KEY, step, 10.0))
    await asyncio.sleep(0)
    step.may.set()
    ends.set()
    assert (await again)[1] == "2" and step.begun == 2  # type: ignore[index]


async def test_steps_of_our_own_nodes_go_on(eventually: Eventually) -> None:
    asked, step = Asked(), Step()
    task: Any = asyncio.create_task(asked.answer(OURS, KEY, step, 0.01))
    await eventually(lambda: step.begun == 1, 5.0, "the step")
    task.cancel()
    await asyncio.wait([task])
    again = asyncio.create_task(asked.answer(OURS, KEY, step, 0.01))
    await asyncio.sleep(0)
    step.may.set()
    assert (await again)[1] == "1"  # type: ignore[index]


async def test_a_joined_node_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    asked, step = Asked(), Step()
    for number in range(3):
        with pytest.raises(TemporaryError, match="ask again"):
            await asked.answer(NODE, (KEY[0], 1, bytes([number])), step, 0.01)
    with pytest.raises(TemporaryError) as refused:
        await asked.answer(NODE, (KEY[0], 1, b"more"), step, 0.01)
    assert refused.value.reason == "TOO_MANY"
    for caller in (OTHER, OURS, NODE):  # the last one's steps have ended by then
        step.may.set()
        await asked.answer(caller, (KEY[0], 1, b"more"), step, 10.0)


async def test_the_first_answer_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    assert asked.given(b"t", b"a") is None
    assert asked.keep(b"t", b"a", (RECEIPT, "first")) == (RECEIPT, "first")
    assert asked.keep(b"t", b"a", (RECEIPT, "second")) == (RECEIPT, "first")
    assert asked.given(b"t", b"a") == (RECEIPT, "first")
    monkeypatch.setattr(module, "_MOST_KEPT", 5000)
    for number in range(9):
        asked.keep(b"t", bytes([number]), (RECEIPT, "x" * 1000))
    assert asked.given(b"t", b"a") is None and asked.given(b"t", bytes([8])) is not None


async def test_answers_are_kept_up_to_their_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    monkeypatch.setattr(module, "_MOST_KEPT", 10 * module._size((RECEIPT, "x")))
    asked.keep(b"t", b"long", (RECEIPT, "x" * 5000))
    for number in range(99):
        asked.keep(b"t", bytes([number]), (RECEIPT, "x"))
    kept = [asked.given(b"t", bytes([number])) for number in range(99)]
    assert kept[:89] == [None] * 89 and None not in kept[89:]
