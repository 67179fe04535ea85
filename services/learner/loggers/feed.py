"""The feeding of loggers: each has a thread, a bounded queue and a note of what it has logged.

No step waits for a logger, only the end of the run does. A step is logged once: steps that a
learner trains again after a kill are known, and steps that were committed but not logged are
offered again from the store. Samples of completions are large, so few of them wait. Failures of a
logger, and records beyond its queue, are counted and reported once.
"""

import logging
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from banyan.loggers import LoggedRun, Logger
from banyan.loggers.completions import Completion, CompletionsLogger, wish_of
from banyan.loggers.tags import PLAIN
from services.chassis.process import telemetry
from services.learner.loggers import note

log = logging.getLogger(__name__)

MOST = 1024  # records that wait
MOST_SAMPLED = 8  # sampled steps among them: each may hold 2 MB of texts
CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Record:
    """The metrics of a trained step, or of the evaluation `label` of that step's policy."""

    step: int
    metrics: Mapping[str, float]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of the completions that a step trained on."""

    step: int
    rows: Sequence[Completion]


class Feed:
    """One logger, begun, fed and closed in its own thread.

    `lost`: records that it did not log
    """

    def __init__(self, name: str, logger: Logger, run: LoggedRun) -> None:
        self.name, self.lost = name, 0
        self._logger, self._run, self._wish = logger, run, wish_of(name, logger)
        self._queue: queue.Queue[Record | Samples | None] = queue.Queue(MOST)
        self._samples = threading.BoundedSemaphore(MOST_SAMPLED)
        self._note = note.read(run.folder.parent / f"{run.folder.name}.json")
        self._begun, self._complained = False, False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"log-{name}", daemon=True)
        self._thread.start()

    def offer(self, record: Record) -> None:
        """Queue a record; it is lost if the queue is full. Returns at once."""
        if not self._is_logged(record):  # the store offers thousands of a long run
            self._put(record)

    def wanted(self, step: int) -> int:
        """Return the samples of a step's completions that the logger wants and has not logged."""
        return self._wish.at(step) if step > self._note.completions else 0

    def offer_samples(self, samples: Samples) -> None:
        """Queue samples; they are lost if there is no room for them. Returns at once."""
        if not self._samples.acquire(blocking=False):
            self._lose(f"it is {MOST_SAMPLED} steps with samples behind")
        elif not self._put(samples):
            self._samples.release()

    def _put(self, record: Record | Samples) -> bool:
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._lose(f"it is {MOST} records behind")
            return False
        return True

    def end(self) -> None:
        """Announce that no record follows."""
        self._ending.set()
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            pass  # the thread checks `_ending` when the queue is empty

    def await_end(self, until: float) -> None:
        """Wait for the thread until a moment of time.monotonic(); then leave it to the exit."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            waiting = self._queue.qsize() + 1
            log.warning(
                "logger %s has not ended in time; up to %d records are lost", self.name, waiting
            )

    # -- in its thread --

    def _work(self) -> None:
        while True:
            try:
                record = self._queue.get(timeout=1.0)
            except queue.Empty:
                if not self._ending.is_set():
                    continue
                record = None
            if record is None:
                break
            self._take(record)
        self._safely(self._logger.close)

    def _take(self, record: Record | Samples) -> None:
        if not self._begun:
            self._begun = self._safely(self._begin)
            if self._begun:
                self._safely(self._note.write)
        if isinstance(record, Samples):
            self._samples.release()
        if not self._begun:
            self._count_lost()
        elif isinstance(record, Samples):
            if record.step > self._note.completions:
                self._log_samples(record)
        elif not self._is_logged(record):
            self._log(record)

    def _log(self, record: Record) -> None:
        metrics = {name: value for name, value in record.metrics.items() if math.isfinite(value)}
        if not self._safely(lambda: self._logger.log(record.step, metrics)):
            self._count_lost()
            return
        if record.label:
            self._note.evaluations.add(record.label)
        else:
            self._note.step = record.step
        self._safely(self._note.write)

    def _log_samples(self, samples: Samples) -> None:
        logger = cast(CompletionsLogger, self._logger)  # `wish_of` has looked for its method
        if not self._safely(lambda: logger.log_completions(samples.step, samples.rows)):
            self._count_lost()
            return
        self._note.completions = samples.step
        self._safely(self._note.write)

    def _begin(self) -> None:
        self._run.folder.mkdir(parents=True, exist_ok=True)
        wanted = getattr(self._logger, "tags", PLAIN)
        tags = self._note.tags or wanted
        newest = self._logger.begin(replace(self._run, last=self._note.step, tags=tags))
        self._note.step, self._note.tags = max(self._note.step, newest), tags
        if tags != wanted:
            log.info("logger %s goes on with the %s names that its log began with", self.name, tags)

    def _is_logged(self, record: Record) -> bool:
        if record.label:
            return record.label in self._note.evaluations
        return record.step <= self._note.step

    def _safely(self, call: Callable[[], object]) -> bool:
        """Tell whether a call succeeded; report its error otherwise."""
        try:
            call()
        except Exception as error:  # foreign code over disks and networks: it may raise anything
            self._complain(f"{type(error).__name__}: {error}")
            return False
        return True

    def _lose(self, reason: str) -> None:
        self._count_lost()
        self._complain(reason)

    def _count_lost(self) -> None:
        self.lost += 1
        telemetry.count("banyan.logger.lost", banyan_logger=self.name)

    def _complain(self, reason: str) -> None:
        if not self._complained:
            self._complained = True
            log.warning(
                "logger %s fails; the run goes on, and this is said once: %s",
                self.name,
                " ".join(reason.split())[:500],
            )


class Feeds:
    """The feeds of all loggers of a run."""

    def __init__(
        self, run_id: str, recipe: Mapping[str, object], loggers: Mapping[str, Logger], folder: Path
    ) -> None:
        self.feeds: list[Feed] = []
        for name, logger in loggers.items():
            own_folder = folder / re.sub(r"[^A-Za-z0-9_.-]", "_", name)
            run = LoggedRun(run_id=run_id, recipe=recipe, folder=own_folder, last=-1)
            self.feeds.append(Feed(name, logger, run))

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Offer the metrics of a step that was trained, or that the store knows."""
        for feed in self.feeds:
            feed.offer(Record(step, dict(metrics)))

    def evaluation(self, label: str, step: int, metrics: Mapping[str, float]) -> None:
        """Offer the metrics of an evaluation that is over; it may be offered repeatedly."""
        for feed in self.feeds:
            feed.offer(Record(step, dict(metrics), label))

    def completions(self, step: int, make: Callable[[int], Sequence[Completion]]) -> None:
        """Offer samples of the completions that a step trained on, where a logger wants some.

        make: returns so many samples
        """
        wanted = {feed: feed.wanted(step) for feed in self.feeds}
        most = max(wanted.values(), default=0)
        rows = make(most) if most else ()
        for feed, count in wanted.items():
            if count:
                feed.offer_samples(Samples(step, rows[:count]))

    def close(self, seconds: float = CLOSE_S) -> None:
        """Let all loggers write what waits, within the same time."""
        for feed in self.feeds:
            feed.end()
        until = time.monotonic() + seconds
        for feed in self.feeds:
            feed.await_end(until)
