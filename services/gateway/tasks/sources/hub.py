"""Rows of data sets of the Hugging Face hub, read by a process of their own.

Each wait for that process has a deadline, after which it is killed.
"""

import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from banyan.errors import InvalidInput
from banyan.recipe.hub_dataset import FORM, HubDataset, parse
from banyan.runtime.distribution import install
from banyan.runtime.launch import OURS
from services.gateway.tasks.sources import arrow

log = logging.getLogger(__name__)
ANSWER_S = 90.0
"""Longest wait until it is known where the rows come from: imports, and answers of the hub."""
FETCH_S = 1500.0
"""Longest wait for a data set to be fetched; a gateway that adopts a run waits for 1800."""
BATCH_S = 60.0
"""Longest wait for the next rows of a data set that is there."""
_END_S = 5.0  # until a process that has closed its output is gone
_PROGRAM = "services.gateway.tasks.sources.hub_reader"
_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
_COPY = (
    "load it once with `datasets` on a machine with network and set HF_HOME to a copy of that"
    " cache, or save it there as Parquet or JSON Lines and name that file in task.path"
)
_REMEDIES = {
    "install": f"{install('datasets')}, or name a file of rows in task.path",
    "name": f"write {FORM}",
    "access": "check the name, and log in with `hf auth login` or HF_TOKEN if not all may read it",
    "copy": _COPY,
}


def records(dataset: HubDataset) -> Iterator[tuple[str, Any]]:
    """Yield each row as Python values, with its place.

    Raise InvalidInput with the cause and the remedy if the rows are neither on the hub nor cached.
    """
    with _reading("rows", dataset) as reader:
        reader.source()
        wanted = int(reader.answer(FETCH_S)["rows"])
        number = 0
        for batch in _batches(reader):
            for row in arrow.rows(batch, str(dataset), number):
                number += 1
                yield f"{dataset} row {number}", row
        if number != wanted:  # Arrow takes the end of a pipe for the end of the rows
            raise reader.broken(f"it gave {number} of {wanted} rows")


def _batches(reader: "_Reader") -> Iterator[Any]:
    import pyarrow

    try:
        stream = pyarrow.ipc.open_stream(reader.output)
        while True:
            with reader.within(BATCH_S):
                batch = next(stream, None)
            if batch is None:
                return
            yield batch
    except (pyarrow.ArrowException, OSError) as error:
        raise reader.broken(str(error)) from None


def fixed(dataset: HubDataset) -> HubDataset:
    """Return the data set with its commit and configuration, so that its rows never change.

    They are those that it has on the hub now, or without a hub in the cache. Raise InvalidInput as
    `records` does.
    """
    if dataset.is_fixed and dataset.config:
        return dataset
    with _reading("fix", dataset) as reader:
        return reader.source()


@contextmanager
def _reading(mode: str, dataset: HubDataset) -> Iterator["_Reader"]:
    """Yield a process that reads a data set; it is killed at the end of the block."""
    limit_s = ANSWER_S + (FETCH_S if mode == "rows" else 0.0)
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [*OURS, _PROGRAM, mode, str(dataset), str(int(limit_s))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **_QUIET},
            start_new_session=True,
        ) as process,
    ):
        reader = _Reader(dataset, process, errors)
        try:
            yield reader
        finally:
            reader.kill()


class _Reader:
    """Process that reads a data set."""

    def __init__(
        self, dataset: HubDataset, process: subprocess.Popen[bytes], errors: IO[bytes]
    ) -> None:
        assert process.stdout is not None
        self._dataset, self._process, self._errors = dataset, process, errors
        self._late_s = 0.0  # the deadline that was missed
        self.output = process.stdout

    def source(self) -> HubDataset:
        """Return the data set with the commit and configuration that are read."""
        facts = self.answer(ANSWER_S)
        source, unreachable = parse(facts["path"]), facts["unreachable"]
        if unreachable:
            log.warning("the hub cannot be reached (%s); %s is cached", unreachable, source)
        return source

    def answer(self, seconds: float) -> dict[str, Any]:
        """Return the next line of facts. Raise InvalidInput if it is a refusal or missing."""
        with self.within(seconds):
            line = self.output.readline()
        if not line:
            raise self.broken("")
        facts = dict(json.loads(line))
        if "refused" in facts:
            raise self._refused(facts["refused"], facts["remedy"])
        return facts

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Kill the process if the block takes longer, which ends its output."""
        timer = threading.Timer(seconds, self._miss, (seconds,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def broken(self, cause: str) -> InvalidInput:
        """Return the error of an output that ended too early."""
        if self._late_s:
            return self._refused(f"nothing came in {self._late_s:.0f} s", "copy")
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        said = lines[-1][:300] if lines else cause
        return self._refused(f"its reader ended with status {status}: {said}", "copy")

    def _refused(self, cause: str, remedy: str) -> InvalidInput:
        return InvalidInput(f"cannot read {self._dataset}: {cause}; {_REMEDIES[remedy]}")

    def _miss(self, seconds: float) -> None:
        self._late_s = seconds
        self.kill()

    def kill(self) -> None:
        """End the process, and those that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
