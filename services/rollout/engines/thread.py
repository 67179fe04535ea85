"""The engine in a thread of its own: commands in, ended segments out, both bounded; asyncio never waits for a step.

In lockstep (deterministic mode) the engine takes a step only when the node has answered the one before (`turn`), so that
what runs together depends on the trees and not on timing.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from banyan.errors import DeadlineMissed, InvalidInput, TemporaryError, with_place
from banyan.policy import PolicyVersion
from banyan.reasons import Reason
from banyan.segment import Floats, IntTokens
from services.chassis.rpc.health import Pulse
from services.rollout.engines.port import Engine, EngineStats, Key, Request, Sampled, Tokenizer

T = TypeVar("T")
_MOST_COMMANDS = 65_536
_MOST_BATCHES = 256
_TICK_S = 0.2  # how late a stop may be noticed while the engine idles or its events are not taken
_LOOK_S = 5.0
BUILD_S = 1800.0  # of weights from a slow disk, and kernels that are compiled
STUCK_S = (
    300.0  # longer than any step, any load of weights that are here and any proof of them takes
)
SLOWEST_B_S = 50e6  # of weights that are handed over, eight times at once


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that the engine refused, and why. `code` is the error's reason: whose fault it is."""

    key: Key
    reason: str
    code: str = ""


@runtime_checkable
class Closing(Protocol):
    """An engine with processes of its own."""

    def close(self) -> None:
        """Ends them."""
        ...


@runtime_checkable
class Waking(Protocol):
    """An engine whose step may wait long for something to end."""

    def wake(self) -> None:
        """Ends the wait, or the next one. May be called by any thread, also after the end."""
        ...


def _submit(engine: Engine, requests: Sequence[Request]) -> list[Refusal]:
    refused: list[Refusal] = []
    for request in requests:
        try:
            engine.submit(request)
        except InvalidInput as error:
            refused.append(Refusal(request.key, str(error), error.reason))
        except (
            Exception
        ) as error:  # of one request: the others of the batch must not be lost with it
            refused.append(Refusal(request.key, with_place(error)))
    return refused


def _gone() -> TemporaryError:
    return TemporaryError(
        "the engine has ended; another node goes on with its trees", reason=Reason.ENGINE_ENDED
    )


class EngineThread:
    """Runs an engine. `start` builds it; `batches` yields what ended, step by step; `stop` ends it."""

    def __init__(
        self,
        make: Callable[[], Engine],
        lockstep: bool = False,
        stuck_s: float = STUCK_S,
        before_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._make, self._lockstep, self._stuck_s, self._before_step = (
            make,
            lockstep,
            stuck_s,
            before_step,
        )
        self.pulse = Pulse("engine")
        self._commands: queue.Queue[tuple[Callable[[Engine], Any], Future[Any]]] = queue.Queue(
            _MOST_COMMANDS
        )
        self._ended: asyncio.Queue[list[Sampled] | BaseException] = asyncio.Queue(_MOST_BATCHES)
        self._room = threading.BoundedSemaphore(_MOST_BATCHES - 1)
        self._my_turn = True
        self._over = False
        self._ending = threading.Lock()
        self._stopping = threading.Event()
        self._quiet: Future[None] | None = None  # somebody waits until nothing runs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._ready: Future[Engine] = Future()
        self.tokenizer: Tokenizer

    async def start(self) -> None:
        """Builds the engine in its thread and waits for it. Raises what building raised."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self.tokenizer = (await asyncio.wrap_future(self._ready)).tokenizer

    async def stop(self, deadline_s: float = 5.0) -> None:
        """Ends the thread after its current step."""
        self._stopping.set()
        self._wake()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, deadline_s)

    async def batches(self) -> list[Sampled]:
        """What ended in the next step in which anything ended. Raises what made the engine fail."""
        batch = await self._ended.get()
        if isinstance(batch, BaseException):
            raise batch
        self._room.release()
        return batch

    async def watch(self) -> None:
        """For ever. Raises DeadlineMissed where a step or a command does not end: nobody can end it, but the node can."""
        while not (late := self.pulse.late):
            await asyncio.sleep(min(_LOOK_S, self._stuck_s))
        raise DeadlineMissed(f"{late}; the node ends with it")

    def leftover(self) -> list[Sampled]:
        """What ended and was not taken yet."""
        ended: list[Sampled] = []
        while not self._ended.empty():
            batch = self._ended.get_nowait()
            if not isinstance(batch, BaseException):
                self._room.release()
                ended += batch
        return ended

    # -- commands; they take effect between two steps, in order --

    def submit(self, requests: Sequence[Request]) -> "Future[list[Refusal]]":
        """Queues segments; the answer names those that can never run."""
        return self._command(lambda engine: _submit(engine, requests))

    def turn(self) -> None:
        """In lockstep: all that the node had to say to the last step is said."""
        self._command(lambda _: setattr(self, "_my_turn", True))

    def forget(self) -> None:
        """Drops all kept prefixes."""
        self._command(lambda engine: engine.forget())

    async def abort(self, keys: Sequence[Key]) -> list[Sampled]:
        """Stops segments and returns what there is of them."""
        parts = await asyncio.wrap_future(
            self._command(lambda engine: [engine.abort(k) for k in keys])
        )
        return [part for part in parts if part is not None]

    async def drain(self, deadline_s: float) -> bool:
        """Admits no more and waits until nothing runs; False at the deadline. A policy that is loaded ends it."""
        quiet = await asyncio.wrap_future(self._command(self._hold))
        try:
            await asyncio.wait_for(asyncio.wrap_future(quiet), deadline_s)
        except TimeoutError:
            return False
        return True

    def _hold(self, engine: Engine) -> "Future[None]":
        engine.hold(True)
        self._quiet = Future()
        return self._quiet

    async def admit(self) -> None:
        """Ends a drain without a new policy."""
        await asyncio.wrap_future(self._command(lambda engine: engine.hold(False)))

    async def load(
        self, policy: PolicyVersion, weights: Path | None, size: int = 0
    ) -> list[Sampled]:
        """Takes new weights; returns the segments that were cut. size: bytes of them, which may have to come first."""

        def take(engine: Engine) -> list[Sampled]:
            self.pulse.beat("loading weights", self._stuck_s + size / SLOWEST_B_S)
            return engine.load(policy, weights)

        return await asyncio.wrap_future(self._command(take))

    async def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """A spot check."""
        return await asyncio.wrap_future(
            self._command(lambda engine: engine.logprobs(tokens_T, first, temperature))
        )

    async def stats(self) -> EngineStats:
        """Counts."""
        return await asyncio.wrap_future(self._command(lambda engine: engine.stats()))

    def _command(self, do: Callable[[Engine], T]) -> "Future[T]":
        future: Future[T] = Future()
        with (
            self._ending
        ):  # a command comes before the end, and is answered, or after it, and is refused
            if self._over:
                future.set_exception(_gone())
                return future
            try:
                self._commands.put_nowait((do, future))
            except queue.Full:
                raise TemporaryError(
                    f"the engine has {_MOST_COMMANDS} commands waiting; it does not keep up"
                ) from None
        self._wake()
        return future

    # -- the thread --

    def _move(self) -> None:
        """Notes that a step or a command has ended."""
        self.pulse.beat("a step or a command", self._stuck_s)

    def _run(self) -> None:
        self.pulse.beat("building the engine", BUILD_S)
        try:
            engine = self._make()
        except BaseException as error:
            self._ready.set_exception(error)
            return
        if isinstance(engine, Waking):
            self._wake = engine.wake
        self._move()
        self._ready.set_result(engine)
        try:
            while not self._stopping.is_set():
                self._move()
                self._obey(engine)
                self._move()
                if engine.busy and self._my_turn:
                    self._before_step()
                    self._say(engine.step())
                self._look(engine)
        except (
            BaseException
        ) as error:  # whatever it is, the node must end with it instead of waiting for ever
            self._deliver(error)
        finally:
            self.pulse.rest()
            self._dismiss()
            if isinstance(engine, Closing):
                engine.close()

    def _dismiss(self) -> None:
        """Answers those who wait for commands that nobody will obey."""
        with self._ending:
            self._over = True
        while not self._commands.empty():
            _, future = self._commands.get_nowait()
            if future.set_running_or_notify_cancel():
                future.set_exception(_gone())

    def _obey(self, engine: Engine) -> None:
        """Runs waiting commands; waits for one if there is nothing else to do."""
        idle = not engine.busy or not self._my_turn
        while True:
            try:
                do, future = (
                    self._commands.get(timeout=_TICK_S) if idle else self._commands.get_nowait()
                )
            except queue.Empty:
                return
            idle = False
            self._move()
            if not future.set_running_or_notify_cancel():
                continue  # whoever asked is gone
            try:
                future.set_result(do(engine))
            except Exception as error:
                future.set_exception(error)

    def _look(self, engine: Engine) -> None:
        """Tells who waits for it that nothing runs."""
        if self._quiet is not None and not engine.stats().running:
            if self._quiet.set_running_or_notify_cancel():
                self._quiet.set_result(None)
            self._quiet = None

    def _say(self, ended: list[Sampled]) -> None:
        if not ended:
            return
        self._my_turn = not self._lockstep
        while not self._room.acquire(timeout=_TICK_S):
            self._move()  # it is the node that is late
            if self._stopping.is_set():
                return
        self._deliver(ended)

    def _deliver(self, batch: list[Sampled] | BaseException) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ended.put_nowait, batch)
