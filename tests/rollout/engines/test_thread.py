"""The engine in its own thread."""

import asyncio
import threading
import time

import pytest

from banyan.errors import DeadlineMissed, TemporaryError
from banyan.policy import PolicyVersion
from services.rollout.engines.port import EngineStats
from services.rollout.engines.thread import EngineThread
from tests.rollout.conftest import ask
from tests.rollout.engines.test_scripted import prompt
from tests.rollout.growing import ENDLESS, engine


async def started(lockstep=False, **more):
    thread = EngineThread(lambda: engine(ENDLESS, **more), lockstep)
    await thread.start()
    return thread


async def test_segments_come_back_as_they_end():
    thread = await started()
    try:
        assert (
            await asyncio.wrap_future(
                thread.submit([ask(i, prompt("go"), i, max_new_tokens=2 + i) for i in range(3)])
            )
            == []
        )
        seen = [s for _ in range(3) for s in await asyncio.wait_for(thread.batches(), 5)]
        assert [s.key for s in seen] == [0, 1, 2]
        assert (await thread.stats()).sampled_tokens == 2 + 3 + 4
        assert len(await thread.logprobs(prompt("go"), 1, 1.0)) == len(prompt("go")) - 1
    finally:
        await thread.stop()


async def test_what_is_to_be_done_before_a_step_is_done_in_the_engines_thread_before_each():
    made, before = engine(ENDLESS), list[str]()
    thread = EngineThread(
        lambda: made, before_step=lambda: before.append(threading.current_thread().name)
    )
    step, steps = made.step, list[int]()
    made.step = lambda: steps.append(len(before)) or step()
    await thread.start()
    try:
        await asyncio.wrap_future(thread.submit([ask(0, prompt("go"), 0, max_new_tokens=4)]))
        assert len(await asyncio.wait_for(thread.batches(), 5)) == 1
    finally:
        await thread.stop()
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 4 and set(before) == {"engine"}


async def test_refused_requests_are_named_and_the_others_run():
    thread = await started()
    try:
        bad = ask("bad", prompt("go"), max_new_tokens=0)
        refused = await asyncio.wrap_future(thread.submit([bad, ask("good", prompt("go"))]))
        assert [r.key for r in refused] == ["bad"] and "at least one new" in refused[0].reason
        assert (await asyncio.wait_for(thread.batches(), 5))[0].key == "good"
    finally:
        await thread.stop()


async def test_in_lockstep_no_step_is_taken_before_the_answer():
    thread = await started(lockstep=True)
    try:
        await asyncio.wrap_future(
            thread.submit([ask(i, prompt("go"), i, max_new_tokens=1 + i) for i in range(4)])
        )
        for turn in range(4):
            assert [s.key for s in await asyncio.wait_for(thread.batches(), 5)] == [turn]
            for _ in range(3):
                assert (await thread.stats()).steps == turn + 1
            thread.turn()
    finally:
        await thread.stop()


async def test_in_lockstep_the_answer_comes_with_its_requests():
    thread = await started(lockstep=True)
    try:
        requests = [ask(i, prompt("go"), i, max_new_tokens=1 + i) for i in range(2)]
        await asyncio.wrap_future(thread.submit(requests, turn=True))
        for turn in range(2):
            assert [s.key for s in await asyncio.wait_for(thread.batches(), 5)] == [turn]
            for _ in range(3):
                assert (await thread.stats()).steps == turn + 1
            later = [ask("later", prompt("go"), 9, max_new_tokens=9)]
            assert not await asyncio.wrap_future(thread.submit(later, turn=True))
    finally:
        await thread.stop()


async def test_in_lockstep_a_pause_lasts_until_the_next_turn():
    thread = await started(lockstep=True)
    try:
        thread.pause()
        await asyncio.wrap_future(thread.submit([ask(0, prompt("go"), max_new_tokens=1)]))
        for _ in range(3):
            assert (await thread.stats()).steps == 0
        thread.turn()
        assert [s.key for s in await asyncio.wait_for(thread.batches(), 5)] == [0]
    finally:
        await thread.stop()


async def test_an_abort_and_a_new_policy_answer_with_the_parts():
    thread = await started(lockstep=True)
    try:
        requests = [
            ask("done", prompt("go"), max_new_tokens=2),
            *(ask(i, prompt("go"), i, max_new_tokens=99) for i in range(3)),
        ]
        await asyncio.wrap_future(thread.submit(requests))
        await asyncio.wait_for(thread.batches(), 5)
        assert [len(s.tokens_T) for s in await thread.abort([1, "never"])] == [2]
        cut = await thread.load(PolicyVersion(1, 7, b"new"), None)
        assert [(s.key, len(s.tokens_T), s.policy.step) for s in cut] == [(0, 2, 0), (2, 2, 0)]
    finally:
        await thread.stop()


async def test_an_engine_that_hangs_is_noticed():
    hangs, goes_on = threading.Event(), threading.Event()

    def hang():
        hangs.set()
        assert goes_on.wait(20)
        return []

    def made():
        one = engine(ENDLESS)
        one.step = hang
        return one

    thread = EngineThread(made, stuck_s=0.6)
    await thread.start()
    try:
        watching = asyncio.create_task(thread.watch())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(watching), 1.0)  # it idles, which is no hanging
        thread.submit([ask("long", prompt("go"), max_new_tokens=500)])
        with pytest.raises(
            DeadlineMissed,
            match=r"engine: a step or a command is \d+ s over its deadline; the node ends",
        ):
            await asyncio.wait_for(watching, 10)
        assert hangs.is_set()
    finally:
        goes_on.set()
        await thread.stop()


async def test_a_command_ends_the_wait_of_a_step():
    class Waiting:
        """An engine that is always busy; a step waits until it is woken."""

        tokenizer, busy, woken = None, True, threading.Event()

        def step(self):
            self.woken.wait(60)
            self.woken.clear()
            return []

        def stats(self):
            return EngineStats(steps=7)

        def wake(self):
            self.woken.set()

    thread = EngineThread(Waiting)
    await thread.start()
    try:
        for _ in range(3):
            assert (await asyncio.wait_for(thread.stats(), 20)).steps == 7
    finally:
        begun = time.monotonic()
        await thread.stop(30)
        assert time.monotonic() - begun < 20


async def test_what_was_not_taken_is_left_over():
    thread = await started()
    try:
        await asyncio.wrap_future(
            thread.submit([ask(i, prompt("go"), i, max_new_tokens=1 + i) for i in range(3)])
        )
        while (now := await thread.stats()).running or now.waiting:
            await asyncio.sleep(0)
        assert [s.key for s in thread.leftover()] == [0, 1, 2] and thread.leftover() == []
    finally:
        await thread.stop()


async def test_an_engine_that_cannot_be_built_or_fails_says_so():
    def broken():
        raise RuntimeError("no such model")

    with pytest.raises(RuntimeError, match="no such model"):
        await EngineThread(broken).start()

    class Failing:
        tokenizer, busy = None, True

        def step(self):
            raise ZeroDivisionError("in the engine")

    thread = EngineThread(Failing)
    await thread.start()
    try:
        with pytest.raises(ZeroDivisionError, match="in the engine"):
            await asyncio.wait_for(thread.batches(), 5)
    finally:
        await thread.stop()


async def test_nobody_waits_for_an_engine_that_is_gone():
    """The last error comes from `batches`. Commands that never run must not delay it."""
    broken = asyncio.Event()

    class Failing:
        tokenizer, busy = None, True

        def step(self):
            while not broken.is_set():
                time.sleep(0.001)
            raise ZeroDivisionError("in the engine")

    thread = EngineThread(Failing)
    await thread.start()
    try:
        asked = asyncio.ensure_future(thread.abort(["a"]))
        await asyncio.sleep(0)
        broken.set()
        with pytest.raises(TemporaryError, match="engine"):
            await asyncio.wait_for(asked, 5)
        with pytest.raises(TemporaryError, match="engine"):
            await asyncio.wait_for(thread.stats(), 5)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(thread.batches(), 5)
    finally:
        await thread.stop()


async def test_commands_to_a_stopped_engine_are_answered():
    thread = await started()
    await thread.stop()
    with pytest.raises(TemporaryError, match="engine"):
        await asyncio.wait_for(thread.stats(), 5)
