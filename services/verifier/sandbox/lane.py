"""The children of one scorer: each takes one score at a time."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from banyan.plugins import Scored, Unscorable
from banyan.programs.run import Outcome
from services.verifier.sandbox import ends
from services.verifier.sandbox.closing import Closing
from services.verifier.sandbox.fair_slots import FairSlots
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.outcomes import REASON_CHARACTERS, outcomes, plain
from services.verifier.sandbox.worker import ChildDied, ScorerSpec, Worker

log = logging.getLogger(__name__)
_MAX_PRINTED = 2_000  # characters of a scorer's output in a log line
Begin = Callable[[], Awaitable[Mapping[str, Any]]]
_MAX_CALLS = 10_000  # then a child is replaced, which bounds the leaks of its imports


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a score, and the scorer's version."""

    version: str
    outcome: Scored | Unscorable


@dataclass(slots=True)
class _Tries:
    """A request, and what became of its attempts so far.

    begin: begins what must not be repeated, and gives more of the request.
    workers: children that have tried.
    """

    request: Mapping[str, Any]
    count: int
    begin: Begin | None = None
    workers: list[Worker] = field(default_factory=list)
    ended: list[ends.End] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """True for one completion, False for those of a group."""
        return "completion" in self.request


class Lane:
    """The children of one scorer.

    hurried: an attempt that is at its deadline is the last one, and gives no score.
    """

    def __init__(
        self,
        spec: ScorerSpec,
        limits: Limits,
        width: int,
        turns: FairSlots,
        *,
        hurried: bool = False,
    ) -> None:
        self._hurried = hurried
        self._spec, self._limits, self._turns = spec, limits, turns
        self._width, self._slots = width, FairSlots(width)
        self._held = 0  # by scores that wait or are under way
        self._idle: list[Worker] = []
        self._closing = Closing()
        self._closed = False
        self._version, self._wrong = "", 0.0  # of the child that scored last
        self._works = False  # the scorer has given an answer, so it is able to

    @property
    def busy(self) -> bool:
        """True while a score waits or is under way."""
        return self._held > 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the lane busy."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def score(self, request: Mapping[str, Any], run_id: str, count: int = 1) -> list[Verdict]:
        """Return `count` verdicts; after an end without an answer let another child try.

        Raise InvalidInput if the scorer cannot be loaded.
        """
        tries = _Tries(request, count)
        while True:
            async with self._slots.slot(run_id):
                decided = await self._try(tries, run_id)
            if decided is not None:
                break
        if tries.alone and isinstance(decided[0], Scored) and not self._works:
            decided = [await self._controlled(tries, decided[0], run_id)]
        return [Verdict(self._version, outcome) for outcome in decided]

    async def _controlled(self, tries: "_Tries", wrong: Scored, run_id: str) -> Scored | Unscorable:
        """Return a wrong answer's score; none if the scorer ends on an empty completion, too.

        A limit that is too low for the scorer itself must not make wrong answers of all.
        """
        control = _Tries({**tries.request, "completion": ""}, 1)
        async with self._slots.slot(run_id):
            await self._try(control, run_id)
        if not control.ended:
            return wrong
        reason = f"EXCEPTION: the scorer ends on an empty answer, too: {tries.ended[-1].reason}"
        return Unscorable(plain(reason, REASON_CHARACTERS))

    async def version(self) -> str:
        """Return the scorer's version. Raise InvalidInput if it cannot be loaded, ChildDied if the
        child cannot run.
        """
        async with self._slots.slot(""):
            if not self._idle:
                self._idle.append(await Worker.start(self._spec, self._limits))
            return self._idle[-1].version

    async def warm(self, row: Mapping[str, Any]) -> None:
        """Start a child, and look whether the scorer can be called with the row."""
        self._idle.append(await Worker.start(self._spec, self._limits, row))

    async def ask(
        self, request: Mapping[str, Any], run_id: str, *, begin: Begin | None = None
    ) -> dict[str, Any] | ends.End:
        """Return a child's own answer, unchecked, or the end that decided.

        begin: called when a child is ready, for more of the request; the first end decides then.

        Raise InvalidInput if the child's code cannot be loaded.
        """
        tries = _Tries(request, 1, begin)
        while True:
            async with self._slots.slot(run_id):
                answer = await self._asked(tries, run_id)
            if not isinstance(answer, ends.End):
                return answer
            tries.ended.append(answer)
            if begin is not None or ends.final(tries.ended):
                return answer

    async def _try(self, tries: "_Tries", run_id: str) -> list[Scored | Unscorable] | None:
        """Return the outcomes; None if another child is to try."""
        answer = await self._asked(tries, run_id)
        if isinstance(answer, ends.End):
            return self._ended(tries, answer)
        return outcomes(answer, tries.count, self._spec.name)

    async def _asked(self, tries: "_Tries", run_id: str) -> dict[str, Any] | ends.End:
        """Return the answer of a child, or the end of the attempt."""
        try:
            worker = self._idle_but(tries.workers) or await Worker.start(self._spec, self._limits)
            if tries.begin is not None:
                await self._begin(tries, worker)
            answer = await self._answer(worker, tries, run_id)
        except ChildDied as error:
            return ends.lost(str(error))
        if (end := ends.parsed(answer, self._limits.deadline_s)) is not None:
            return end
        self._works = True
        return answer

    async def _begin(self, tries: "_Tries", worker: Worker) -> None:
        assert tries.begin is not None
        try:
            tries.request = {**tries.request, **await tries.begin()}
        except BaseException:  # whatever kept it from beginning, the child is as it was
            self._idle.append(worker)
            raise

    def _ended(self, tries: "_Tries", end: ends.End) -> list[Scored | Unscorable] | None:
        tries.ended.append(end)
        outcome: Scored | Unscorable | None
        if self._hurried and end.cause in (Outcome.WALL, Outcome.CPU):
            outcome = Unscorable(plain(end.reason, REASON_CHARACTERS))
        else:
            outcome = ends.decided(tries.ended, self._wrong if tries.alone else None)
        log.info("scorer %s: %s: %s", self._spec.name, end.reason, outcome or "another child tries")
        return None if outcome is None else [outcome] * tries.count

    async def _answer(self, worker: Worker, tries: "_Tries", run_id: str) -> dict[str, Any]:
        """Return the answer of a child, which is kept then, or ended."""
        tries.workers.append(worker)
        self._version, self._wrong = worker.version, worker.wrong
        reusable = False
        needs_turn = self._limits.processes and not worker.apart
        try:
            async with self._turns.slot(run_id) if needs_turn else contextlib.nullcontext():
                answer = await worker.score(tries.request)
            if "printed" in answer:
                # Quoted: it may contain a completion, which must not pass for a line of the log.
                printed = str(answer["printed"])[:_MAX_PRINTED]
                log.info("scorer %s printed %r", self._spec.name, printed)
            reusable = worker.calls < _MAX_CALLS and not worker.spent and not self._closed
            return answer
        finally:
            if reusable and len(self._idle) < self._width:
                self._idle.append(worker)
            else:
                self._closing.end(worker)

    def _idle_but(self, tried: Sequence[Worker]) -> Worker | None:
        """Take an idle child that has not tried yet."""
        for worker in reversed(self._idle):
            if worker not in tried:
                self._idle.remove(worker)
                return worker
        return None

    async def close(self) -> None:
        """End the idle children; busy ones end with their score."""
        self._closed = True
        while self._idle:
            self._closing.end(self._idle.pop())
        await self._closing.all()
