"""A program of others that a command keeps: its start, its first answer, its end."""

import contextlib
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from banyan.errors import DeadlineMissed, InvalidInput
from banyan.runtime.launch import OURS

_END_S = 10.0
_POLL_S = 0.1
_LAST_BYTES = 1000


@dataclass(frozen=True)
class Tool:
    """A running program.

    name: its name for people
    address: where it answers
    log: its log file
    process: the process
    """

    name: str
    address: str
    log: Path
    process: "subprocess.Popen[bytes]"

    def ended(self) -> str:
        """Return that it has ended, with its last words; empty while it runs."""
        status = self.process.poll()
        if status is None:
            return ""
        return f"{self.name} ended with status {status}: {self._last_words()} ({self.log})"

    def await_answer(self, path: str, deadline_s: float) -> None:
        """Wait until it answers. Raise InvalidInput if it ends, DeadlineMissed if it is silent."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if ended := self.ended():
                raise InvalidInput(ended)
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.address}{path}", timeout=5),
            ):
                return
            time.sleep(_POLL_S)
        raise DeadlineMissed(
            f"{self.name} did not answer within {deadline_s:.0f} s: see {self.log}"
        )

    def answers(self, path: str) -> bool:
        """Return whether it has something at a path; redirects are followed."""
        try:
            with urllib.request.urlopen(f"{self.address}{path}", timeout=5):
                return True
        except OSError:  # an answer that is an error is one, too
            return False

    def _last_words(self) -> str:
        text = self.log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip()
        return text.splitlines()[-1] if text else "it says nothing"


@contextlib.contextmanager
def running(
    name: str, command: Sequence[str], *, address: str, log: Path, env: Mapping[str, str]
) -> Iterator[Tool]:
    """Run a program until the block is left; it ends with this process, however that ends.

    Ctrl-C does not reach it, as it is in a session of its own.
    """
    surroundings = {**os.environ, **env, "BANYAN_PARENT": str(os.getpid())}
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*OURS, "services.chassis.lifeline", *command],
            env=surroundings,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    try:
        yield Tool(name, address, log, process)
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)
