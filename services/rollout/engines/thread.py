"""The engine in a thread of its own: commands in, ended segments out, both bounded.

asyncio never waits for a step. In lockstep (deterministic mode) the engine takes a step only after
the node has answered the one before (`turn`), and none while answers to actions are missing
(`pause`), so that the set of running branches depends on the trees and not on timing.
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
from services.rollout.engines.occupancy import Occupancy
from services.rollout.engines.port import Engine, EngineStats, Key, Request, Sampled, Tokenizer

T = TypeVar("T")
_MAX_COMMANDS = 65_536
_MAX_BATCHES = 256
_TICK_S = 0.2  # delay after which a stop is noticed while the engine idles or its output is full
_WATCH_S = 5.0  # interval of the check that the engine is not late
BUILD_S = 1800.0  # bound of loading weights from a slow disk and compiling kernels
STUCK_S = 300.0  # bound of a step, of a load of local weights and of a proof of them
SLOWEST_B_S = 50e6  # slowest transfer of weights by collectives, eight at once


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that the engine refused.

    key: the request's.
    reason: the message.
    code: the error's reason, which says whose fault it is.
    """

    key: Key
    reason: str
    code: str = ""


@runtime_checkable
class Closing(Protocol):
    """An engine with processes of its own."""

    def close(self) -> None:
        """End them."""
        ...


@runtime_checkable
class Waking(Protocol):
    """An engine whose step may block for long."""

    def wake(self) -> None:
        """End the wait of a step, or of the next one. Any thread may call it, at any time."""
        ...


def _submit(engine: Engine, requests: Sequence[Request]) -> list[Refusal]:
    refused: list[Refusal] = []
    for request in requests:
        try:
            engine.submit(request)
        except InvalidInput as error:
            refused.append(Refusal(request.key, str(error), error.reason))
        except Exception as error:  # one bad request must not lose the others of its batch
            refused.append(Refusal(request.key, with_place(error)))
    return refused


def _ended_error() -> TemporaryError:
    message = "the engine has ended; another node goes on with its trees"
    return TemporaryError(message, reason=Reason.ENGINE_ENDED)


class EngineThread:
    """A thread that runs an engine.

    `start` builds the engine, `batches` returns ended segments step by step, `stop` ends the
    thread.
    """

    def __init__(
        self,
        make: Callable[[], Engine],
        lockstep: bool = False,
        stuck_s: float = STUCK_S,
        before_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._make, self._lockstep, self._stuck_s = make, lockstep, stuck_s
        self._before_step, self._occupancy = before_step, Occupancy()
        self.pulse = Pulse("engine")
        self._commands: queue.Queue[tuple[Callable[[Engine], Any], Future[Any]]] = queue.Queue(
            _MAX_COMMANDS
        )
        self._ended: asyncio.Queue[list[Sampled] | BaseException] = asyncio.Queue(_MAX_BATCHES)
        self._output_slots = threading.BoundedSemaphore(_MAX_BATCHES - 1)
        self._my_turn = True
        self._over = False
        self._ending = threading.Lock()
        self._stopping = threading.Event()
        self._quiet: Future[None] | None = None  # set once no branch runs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._ready: Future[Engine] = Future()
        self.tokenizer: Tokenizer

    async def start(self) -> None:
        """Build the engine in its thread and wait for it. Raise the error of building it."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self.tokenizer = (await asyncio.wrap_future(self._ready)).tokenizer

    async def stop(self, deadline_s: float = 5.0) -> None:
        """End the thread after its current step."""
        self._stopping.set()
        self._wake()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._thread.join, deadline_s)

    async def batches(self) -> list[Sampled]:
        """Return the segments of the next step in which any ended. Raise the engine's error."""
        batch = await self._ended.get()
        if isinstance(batch, BaseException):
            raise batch
        self._output_slots.release()
        return batch

    async def watch(self) -> None:
        """Watch the engine until cancelled. Raise DeadlineMissed where a step or command hangs.

        The thread cannot be ended then, but the node can.
        """
        while not (late := self.pulse.late):
            await asyncio.sleep(min(_WATCH_S, self._stuck_s))
        raise DeadlineMissed(f"{late}; the node ends with it")

    def leftover(self) -> list[Sampled]:
        """Return ended segments that `batches` has not returned yet."""
        ended: list[Sampled] = []
        while not self._ended.empty():
            batch = self._ended.get_nowait()
            if not isinstance(batch, BaseException):
                self._output_slots.release()
                ended += batch
        return ended

    # -- commands; they take effect between two steps, in order --

    def submit(self, requests: Sequence[Request], turn: bool = False) -> "Future[list[Refusal]]":
        """Queue segments; the result names those that can never run.

        turn: whether they answer the last step in lockstep. As two commands, a step could come
        between them, and one more would then follow unanswered.
        """

        def run(engine: Engine) -> list[Refusal]:
            self._my_turn |= turn
            return _submit(engine, requests)

        return self._command(run)

    def turn(self) -> None:
        """Allow the next step in lockstep: the node has answered the last one."""
        self._command(lambda _: setattr(self, "_my_turn", True))

    def pause(self) -> None:
        """Take no step before the next `turn`, in lockstep."""
        self._command(lambda _: setattr(self, "_my_turn", False))

    def forget(self) -> None:
        """Drop all cached prefixes."""
        self._command(lambda engine: engine.forget())

    async def abort(self, keys: Sequence[Key]) -> list[Sampled]:
        """Stop segments and return them as far as they are sampled."""
        aborting = self._command(lambda engine: [engine.abort(key) for key in keys])
        segments = await asyncio.wrap_future(aborting)
        return [segment for segment in segments if segment is not None]

    async def drain(self, deadline_s: float) -> bool:
        """Stop admission and wait until no branch runs; return False at the deadline.

        Loading a policy resumes admission.
        """
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
        """Resume admission after a drain without a new policy."""
        await asyncio.wrap_future(self._command(lambda engine: engine.hold(False)))

    async def load(
        self, policy: PolicyVersion, weights: Path | None, size: int = 0
    ) -> list[Sampled]:
        """Load new weights, and return the aborted segments.

        size: bytes of the weights that may have to be transferred first.
        """

        def load(engine: Engine) -> list[Sampled]:
            self.pulse.beat("loading weights", self._stuck_s + size / SLOWEST_B_S)
            return engine.load(policy, weights)

        return await asyncio.wrap_future(self._command(load))

    async def logprobs(self, tokens_T: IntTokens, first: int, temperature: float) -> Floats:
        """Return log-probs of tokens[first:], for a spot check."""
        scoring = self._command(lambda engine: engine.logprobs(tokens_T, first, temperature))
        return await asyncio.wrap_future(scoring)

    @property
    def seen(self) -> EngineStats:
        """The counts of a moment ago, without a wait for the step under way."""
        return self._occupancy.seen

    async def stats(self) -> EngineStats:
        """Return the counts."""
        return await asyncio.wrap_future(self._command(lambda engine: engine.stats()))

    def _command(self, run: Callable[[Engine], T]) -> "Future[T]":
        future: Future[T] = Future()
        # A command precedes the end, and is answered, or follows it, and is refused.
        with self._ending:
            if self._over:
                future.set_exception(_ended_error())
                return future
            try:
                self._commands.put_nowait((run, future))
            except queue.Full:
                raise TemporaryError(
                    f"the engine has {_MAX_COMMANDS} commands waiting; it does not keep up"
                ) from None
        self._wake()
        return future

    # -- the thread --

    def _beat(self) -> None:
        """Record that a step or a command has ended."""
        self.pulse.beat("a step or a command", self._stuck_s)

    def _run(self) -> None:
        self.pulse.beat("building the engine", BUILD_S)
        try:
            engine = self._make()
        except BaseException as error:  # `start` raises it
            self._ready.set_exception(error)
            return
        if isinstance(engine, Waking):
            self._wake = engine.wake
        self._beat()
        self._ready.set_result(engine)
        try:
            while not self._stopping.is_set():
                self._beat()
                self._run_commands(engine)
                self._beat()
                if engine.busy and self._my_turn:
                    self._before_step()
                    self._publish(engine.step())
                self._occupancy.look(engine.stats)
                self._settle_drain(engine)
        except BaseException as error:  # the node must end with any error instead of waiting
            self._deliver(error)
        finally:
            self.pulse.rest()
            self._refuse_commands()
            if isinstance(engine, Closing):
                engine.close()

    def _refuse_commands(self) -> None:
        """Refuse the commands that are still waiting at the end."""
        with self._ending:
            self._over = True
        while not self._commands.empty():
            _, future = self._commands.get_nowait()
            if future.set_running_or_notify_cancel():
                future.set_exception(_ended_error())

    def _run_commands(self, engine: Engine) -> None:
        """Run waiting commands; wait for one if the engine idles."""
        idle = not engine.busy or not self._my_turn
        while True:
            try:
                if idle:
                    run, future = self._commands.get(timeout=_TICK_S)
                else:
                    run, future = self._commands.get_nowait()
            except queue.Empty:
                return
            idle = False
            self._beat()
            if not future.set_running_or_notify_cancel():
                continue  # the caller has cancelled it
            try:
                future.set_result(run(engine))
            except Exception as error:  # of any kind: it belongs to the caller
                future.set_exception(error)

    def _settle_drain(self, engine: Engine) -> None:
        """Complete a drain once no branch runs."""
        if self._quiet is not None and not engine.stats().running:
            if self._quiet.set_running_or_notify_cancel():
                self._quiet.set_result(None)
            self._quiet = None

    def _publish(self, ended: list[Sampled]) -> None:
        if not ended:
            return
        self._my_turn = not self._lockstep
        while not self._output_slots.acquire(timeout=_TICK_S):
            self._beat()  # the node is late, not the engine
            if self._stopping.is_set():
                return
        self._deliver(ended)

    def _deliver(self, batch: list[Sampled] | BaseException) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ended.put_nowait, batch)
