"""The feeding of loggers: each has a thread, a bounded queue and a note of what it has logged.

No step waits for a logger, only the end of the run does. A step is logged once: steps that a
learner trains again after a kill are known, and steps that were committed but not logged are
offered again from the store. Failures of a logger, and records beyond its queue, are counted and
reported once.
"""

import json
import logging
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from banyan.loggers import LoggedRun, Logger
from services.chassis.process import telemetry

log = logging.getLogger(__name__)

MOST = 1024  # records that wait
CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Record:
    """The metrics of a trained step, or of the evaluation `label` of that step's policy."""

    step: int
    metrics: Mapping[str, float]
    label: str = ""


class Feed:
    """One logger, begun, fed and closed in its own thread.

    `lost`: records that it did not log
    """

    def __init__(self, name: str, logger: Logger, run: LoggedRun) -> None:
        self.name, self.lost = name, 0
        self._logger, self._run = logger, run
        self._queue: queue.Queue[Record | None] = queue.Queue(MOST)
        self._note = run.folder.parent / f"{run.folder.name}.json"
        self._last_step, self._labels = _read_note(self._note)
        self._begun, self._complained = False, False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"log-{name}", daemon=True)
        self._thread.start()

    def offer(self, record: Record) -> None:
        """Queue a record; it is lost if the queue is full. Returns at once."""
        if self._is_logged(record):  # the store offers thousands of a long run
            return
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._lose(f"it is {MOST} records behind")

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
            self._log(record)
        self._safely(self._logger.close)

    def _log(self, record: Record) -> None:
        if not self._begun:
            self._begun = self._safely(self._begin)
        if not self._begun:
            self._count_lost()
            return
        if self._is_logged(record):
            return
        metrics = {name: value for name, value in record.metrics.items() if math.isfinite(value)}
        if self._safely(lambda: self._logger.log(record.step, metrics)):
            self._note_logged(record)
        else:
            self._count_lost()

    def _begin(self) -> None:
        self._run.folder.mkdir(parents=True, exist_ok=True)
        newest = self._logger.begin(replace(self._run, last=self._last_step))
        self._last_step = max(self._last_step, newest)

    def _is_logged(self, record: Record) -> bool:
        return record.label in self._labels if record.label else record.step <= self._last_step

    def _note_logged(self, record: Record) -> None:
        if record.label:
            self._labels.add(record.label)
        else:
            self._last_step = record.step
        self._safely(self._write_note)

    def _write_note(self) -> None:
        fresh = self._note.with_suffix(".new")
        note = {"step": self._last_step, "evaluations": sorted(self._labels)}
        fresh.write_text(json.dumps(note))
        os.replace(fresh, self._note)

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

    def close(self, seconds: float = CLOSE_S) -> None:
        """Let all loggers write what waits, within the same time."""
        for feed in self.feeds:
            feed.end()
        until = time.monotonic() + seconds
        for feed in self.feeds:
            feed.await_end(until)


def _read_note(path: Path) -> tuple[int, set[str]]:
    """Return the last step and the evaluations that a logger has logged.

    Without a note, or with a torn one, loggers know by themselves, or log steps twice.
    """
    try:
        note = json.loads(path.read_text())
        return int(note["step"]), set(note["evaluations"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1, set()
