"""Sessions of a small language: a subset of Python, interpreted in worker processes (monty).

A run takes a fraction of a millisecond, and the state that it leaves is a few kilobytes, so that
each branch of a tree can go on from the state at its fork. The language has no files, sockets,
processes or modules of others; its clock stands still and its random numbers are seeded, so that
the same code on the same state always leaves the same state. The worker is confined besides.

Workers are driven by threads of ours: with the asyncio interface of pydantic-monty 1.4 the process
often aborts at its exit, and a run takes twice as long.
"""

import asyncio
import contextlib
import logging
import os
import sys
import sysconfig
from datetime import UTC, datetime
from pathlib import Path

import pydantic_monty as monty

from banyan.errors import InvalidInput
from banyan.programs.run import Limits, Outcome
from banyan.programs.session import SessionResult, Task
from services.verifier.jail import state as states
from services.verifier.jail.inside import language
from services.verifier.jail.threads import Threads
from services.verifier.jail.turn import Turn, Watch
from services.verifier.sandbox.confinement import folders

log = logging.getLogger(__name__)
MAX_STATE_BYTES = 64 << 10
"""Size of a state. Larger states would make trees heavy; a run that leaves one is refused."""
_MOST_CALLS = 1000  # deep, as in CPython
_MOST_QUESTIONS = 1000  # of one run to us; each gets the answer that there is nothing
_MOST_RUNS = 10_000  # of one worker, so that nothing in it grows without end
_MOST_PARTS = 64  # kept, one for each pair of limits
_CLOCK = datetime(2000, 1, 1, tzinfo=UTC)
_ROOT = str(Path(__file__).parents[3])


class Sessions:
    """Workers that run code on states. Made by `start`."""

    def __init__(self, width: int, key: bytes, folder: str, binary: Path, lock: int) -> None:
        self._key, self._folder, self._lock = key, folder, lock
        self._threads = Threads(width, "monty")  # the others wait in its queue
        self._parts: dict[tuple[float, int], bytes] = {}
        self._pool = monty.Monty(
            binary_path=binary,
            min_processes=width,
            max_processes=width,
            max_checkouts_per_worker=_MOST_RUNS,
        )
        self._pool.__enter__()
        self.version = f"monty {monty.__version__} ({language.RULES})"

    @classmethod
    async def start(cls, *, width: int = 2, key: bytes | None = None) -> "Sessions":
        """Start workers.

        width: runs at once.
        key: seals states, so that only sessions with the same key load them; random if None.

        Raises OSError with the reason where the machine cannot run or confine them.
        """
        folder, lock = folders.locked(folders.MONTY)
        binary = Path(folder, "worker")
        python = getattr(sys, "_base_executable", sys.executable)
        monty_binary = os.path.join(sysconfig.get_path("scripts"), "monty")
        binary.write_text(language.command(python, _ROOT, monty_binary))
        binary.chmod(0o700)
        try:
            sessions = cls(width, os.urandom(32) if key is None else key, folder, binary, lock)
        except (monty.MontyError, RuntimeError) as error:
            folders.remove(folder)
            os.close(lock)
            raise OSError(f"no worker of monty starts: {error}") from error
        async with contextlib.AsyncExitStack() as undo:  # of a start that is cancelled, too
            undo.push_async_callback(sessions.close)
            first = await sessions.run("None")
            if first.outcome is not Outcome.DONE:
                raise OSError(f"no worker of monty starts: {first.stderr.decode(errors='replace')}")
            undo.pop_all()
        return sessions

    async def run(
        self, code: str, state: bytes | None = None, limits: Limits | None = None, *, seed: int = 0
    ) -> SessionResult:
        """Run code on a state, which stays as it is; never raises for what the code does.

        state: what an earlier run returned; None for a fresh one.
        seed: seed of the random numbers of a fresh state.

        Raises InvalidInput for a state that these sessions did not make.
        """
        return await self.do(Task(code, state, limits or Limits(), seed))

    async def do(self, task: Task) -> SessionResult:
        """Do a run; one whose worker ended, or that was kept from running, is tried once more."""
        for attempt in (1, 2):
            result = await self._attempt(task)
            if result.outcome.is_programs and result.outcome is not Outcome.SIGNALLED:
                break
            log.warning("monty, attempt %d: %s %r", attempt, result.outcome, result.stderr)
        return result

    async def close(self) -> None:
        """End all workers; busy ones end with their run."""
        await asyncio.to_thread(self._close)  # to its end, even if nobody waits for that

    def _close(self) -> None:
        self._threads.close()
        self._pool.__exit__(None, None, None)
        folders.remove(self._folder)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def _attempt(self, task: Task) -> SessionResult:
        turn = Turn(task.limits)
        watch = Watch(turn, asyncio.get_running_loop())
        try:
            return await self._threads.run(self._serve, task, turn)
        except asyncio.CancelledError:  # nobody waits for it any more
            turn.end(Outcome.LOST)
            raise
        finally:
            watch.close()

    def _serve(self, task: Task, turn: Turn) -> SessionResult:
        """Do a run in this thread."""
        state, reason = task.state, ""
        try:
            outcome, reason, state = self._checked_out(task, turn)
        except (monty.MontyCrashedError, RuntimeError, OSError) as error:
            outcome, reason = _crash(error), str(error)
        except monty.MontyError as error:  # no memory for the session itself
            outcome, reason = _end(error)
        if turn.cause is not None:
            outcome, reason, state = turn.cause, "", task.state
        elif outcome is Outcome.WALL and turn.cpu_s >= task.limits.cpu_s:
            outcome = Outcome.CPU
        stdout, stderr = turn.output()
        stderr = (stderr + reason.encode(errors="replace"))[: task.limits.output_bytes]
        return SessionResult(outcome, stdout, stderr, state, turn.cpu_s, turn.wall_s)

    def _checked_out(self, task: Task, turn: Turn) -> tuple[Outcome, str, bytes | None]:
        """Return how it ended, why, and the state after it."""
        dump = task.state and states.unpack(task.state, self._key, self._part(task.limits))
        with self._checkout(task) as session:
            try:
                turn.begin(session.worker_pid or 0)
                return self._feed(task, dump, session, turn)
            finally:
                turn.finish()
                if turn.cause is not None:
                    _bury(session)

    def _feed(
        self, task: Task, dump: bytes | None, session: monty.MontySession, turn: Turn
    ) -> tuple[Outcome, str, bytes | None]:
        try:
            if dump:
                _load(session, dump)
            if task.prelude:
                session.feed_run(task.prelude, inputs=task.inputs)
            # Else the value of its last expression would come out of the sandbox. The empty line
            # ends a line that goes on.
            session.feed_run(task.code + "\n\nNone", print_callback=turn.write)
            outcome, reason = Outcome.DONE, ""
        except monty.MontyCrashedError:
            raise
        except monty.MontyError as error:
            outcome, reason = _end(error)
        if not task.keeps or outcome not in (Outcome.DONE, Outcome.EXITED):
            return outcome, reason, task.state
        try:
            state = states.pack(session.dump(), self._key)
        except monty.MontyRuntimeError as error:  # no memory for a dump of all of it
            return Outcome.MEMORY, error.display("type-msg"), task.state
        except states.Unkept as error:
            return Outcome.EXITED, str(error), task.state
        if len(state) > MAX_STATE_BYTES:
            reason = f"the state has {len(state)} bytes, of at most {MAX_STATE_BYTES}"
            return Outcome.MEMORY, reason, task.state
        return outcome, reason, state

    def _part(self, limits: Limits) -> bytes:
        """Return what a dump says of these limits."""
        key = limits.wall_s, limits.memory_mb
        part = self._parts.get(key)
        if part is None:
            with self._checkout(Task("", None, limits)) as session:
                part = states.limits_of(session.dump())
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            self._parts[key] = part
        return part

    def _checkout(self, task: Task) -> monty.MontySession:
        limits = monty.ResourceLimits(
            max_feed_duration_secs=task.limits.wall_s,
            max_memory=task.limits.memory_mb << 20,
            max_recursion_depth=_MOST_CALLS,
            max_suspensions=_MOST_QUESTIONS,
            max_total_sleep_secs=0.0,
        )
        policy = monty.OSPolicy(
            datetime=_CLOCK,
            timezone="utc",
            sleep="zero",
            process_time="zero",
            random_start={"seed": task.seed},
        )
        return self._pool.checkout(limits=limits, os_policy=policy)


def _load(session: monty.MontySession, dump: bytes) -> None:
    try:
        session.load_session(dump)
    except monty.MontyRuntimeError as error:
        if isinstance(error.exception(), MemoryError):
            raise
        raise InvalidInput(
            f"a state of another version than monty {monty.__version__}: {error}"
        ) from error


def _bury(session: monty.MontySession) -> None:
    """Let the pool see that a worker was ended, which may have answered just before."""
    with contextlib.suppress(monty.MontyError, RuntimeError):
        session.dump()


def _end(error: monty.MontyError) -> tuple[Outcome, str]:
    """Return how a run ended by an exception that nothing caught, and its text."""
    inner = error.exception()
    if isinstance(inner, MemoryError):
        return Outcome.MEMORY, str(inner)
    if isinstance(error, monty.MontyRuntimeError | monty.MontySyntaxError):
        if isinstance(inner, TimeoutError) and not error.traceback():  # not one that it raised
            return Outcome.WALL, ""
        if isinstance(inner, SystemExit):
            return (Outcome.EXITED, f"{inner}\n") if str(inner) else (Outcome.DONE, "")
        return Outcome.EXITED, error.display() + "\n"
    return Outcome.EXITED, f"{error}\n"


def _crash(error: Exception) -> Outcome:
    """Return LOST for a worker that was ended from outside or could not be had."""
    is_own = "signal:" in str(error) and "SIGKILL" not in str(error)
    return Outcome.SIGNALLED if is_own else Outcome.LOST
