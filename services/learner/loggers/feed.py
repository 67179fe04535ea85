"""Feeds loggers: a thread, a bounded queue and a note of what was taken for each. Nothing waits for a logger but the end.

A step is taken once: what a learner trains again after a kill is known, and what was committed and not logged is offered
again from the store. What a logger raises, or has no room for, is counted and said once.
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
from dataclasses import dataclass
from pathlib import Path

from banyan.loggers import LoggedRun, Logger
from services.chassis.process import telemetry

log = logging.getLogger(__name__)

MOST = 1024  # records that wait
CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Record:
    """Metrics of a trained step, or of the evaluation `label` of the policy of that step."""

    step: int
    metrics: Mapping[str, float]
    label: str = ""


class Feed:
    """One logger, begun, fed and closed in its own thread."""

    def __init__(self, name: str, logger: Logger, run: LoggedRun) -> None:
        self.name, self.lost = name, 0
        self._logger, self._run = logger, run
        self._queue: queue.Queue[Record | None] = queue.Queue(MOST)
        self._note = run.folder.parent / f"{run.folder.name}.json"
        self._held, self._labels = _noted(self._note)
        self._begun, self._ending, self._complained = False, threading.Event(), False
        self._thread = threading.Thread(target=self._work, name=f"log-{name}", daemon=True)
        self._thread.start()

    def offer(self, record: Record) -> None:
        """Returns at once; a record that finds no room is lost."""
        if self._known(record):  # of a long run the store offers thousands
            return
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._lose(f"it is {MOST} records behind")

    def end(self) -> None:
        """Nothing follows."""
        self._ending.set()
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            pass  # the thread looks at `_ending` when the queue is empty

    def await_end(self, until: float) -> None:
        """Waits for the thread until a moment of time.monotonic(); then leaves it to die with the process."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            log.warning(
                "logger %s has not ended in time; up to %d records are lost",
                self.name,
                self._queue.qsize() + 1,
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

    def _take(self, record: Record) -> None:
        if not self._begun:
            self._begun = self._safely(self._begin)
        if not self._begun:
            self._count()
        elif not self._known(record):
            metrics = {
                name: value for name, value in record.metrics.items() if math.isfinite(value)
            }
            if self._safely(lambda: self._logger.log(record.step, metrics)):
                self._taken(record)
            else:
                self._count()

    def _begin(self) -> None:
        self._run.folder.mkdir(parents=True, exist_ok=True)
        known = LoggedRun(self._run.run_id, self._run.recipe, self._run.folder, self._held)
        self._held = max(self._held, self._logger.begin(known))

    def _known(self, record: Record) -> bool:
        return record.label in self._labels if record.label else record.step <= self._held

    def _taken(self, record: Record) -> None:
        if record.label:
            self._labels.add(record.label)
        else:
            self._held = record.step
        self._safely(self._write_note)

    def _write_note(self) -> None:
        fresh = self._note.with_suffix(".new")
        fresh.write_text(json.dumps({"step": self._held, "evaluations": sorted(self._labels)}))
        os.replace(fresh, self._note)

    def _safely(self, call: Callable[[], object]) -> bool:
        """Whether it went well. Loggers are foreign code that meets disks and networks: they raise whatever they like."""
        try:
            call()
        except Exception as error:
            self._complain(f"{type(error).__name__}: {error}")
            return False
        return True

    def _lose(self, why: str) -> None:
        self._count()
        self._complain(why)

    def _count(self) -> None:
        self.lost += 1
        telemetry.count("banyan.logger.lost", banyan_logger=self.name)

    def _complain(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            log.warning(
                "logger %s fails; the run goes on, and this is said once: %s",
                self.name,
                " ".join(why.split())[:500],
            )


class Feeds:
    """All loggers of a run."""

    def __init__(
        self, run_id: str, recipe: Mapping[str, object], loggers: Mapping[str, Logger], folder: Path
    ) -> None:
        self.feeds = [
            Feed(
                name,
                logger,
                LoggedRun(run_id, recipe, folder / re.sub(r"[^A-Za-z0-9_.-]", "_", name), -1),
            )
            for name, logger in loggers.items()
        ]

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step was trained, or is known from the store."""
        for feed in self.feeds:
            feed.offer(Record(step, dict(metrics)))

    def evaluation(self, label: str, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation is over. The same one may be told again."""
        for feed in self.feeds:
            feed.offer(Record(step, dict(metrics), label))

    def close(self, seconds: float = CLOSE_S) -> None:
        """Gives all of them the same time to write what waits."""
        for feed in self.feeds:
            feed.end()
        until = time.monotonic() + seconds
        for feed in self.feeds:
            feed.await_end(until)


def _noted(path: Path) -> tuple[int, set[str]]:
    try:
        said = json.loads(path.read_text())
        return int(said["step"]), set(said["evaluations"])
    except (OSError, ValueError, KeyError, TypeError):
        return (
            -1,
            set(),
        )  # none yet; or torn, and then loggers know by themselves, or take steps twice
