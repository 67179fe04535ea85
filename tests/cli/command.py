"""`banyan` as a person types it: in this process, where imports are paid for once, or in its
own."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from banyan.cli.main import main

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120

Said = subprocess.CompletedProcess


def banyan(*arguments: str | Path, cwd: Path = ROOT, **env: str) -> Said[str]:
    """Run a command in this process and restore the process; return its output and exit status."""
    words = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    environment = mock.patch.dict(os.environ, {"COLUMNS": "200", **env})
    reported = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with (
        _as_before(),
        contextlib.chdir(cwd),
        environment,
        reported[0],
        reported[1],
        _deadline(words),
    ):
        status = _status(words)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def process(*arguments: str | Path, cwd: Path = ROOT, **env: str) -> Said[str]:
    """Run a command in a process of its own, for tests of starts and ends."""
    command = [sys.executable, "-m", "banyan.cli", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **env}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )


def _status(words: list[str]) -> int:
    try:
        main(words)
    except SystemExit as stop:
        assert stop.code is None or isinstance(stop.code, int), stop.code
        return stop.code or 0
    return 0


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Forget the modules that a test wrote: the next one writes others of their names."""
    known, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - known:
            if not _ours(sys.modules[name]):
                del sys.modules[name]


def _ours(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return file is None or any(Path(file).is_relative_to(place) for place in (ROOT, *_PLACES))


_PLACES = [entry for entry in sys.path if entry]


@contextlib.contextmanager
def _deadline(words: list[str]) -> Iterator[None]:
    """Raise TimeoutError in a command that takes too long."""

    def late(*_: object) -> None:
        raise TimeoutError(f"banyan {' '.join(words)} did not end within {DEADLINE_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
