"""Processor time, memory and age of a process, and processor time of those below it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from services.chassis.process import resource_usage, telemetry
from services.chassis.process.resource_usage import ProcessesBelow

BURN = """
import os, subprocess, sys
spin = "import time; end = time.process_time() + 0.4\\nwhile time.process_time() < end: pass"
subprocess.run([sys.executable, "-c", spin])  # a grandchild, which its parent waits for
print("spent", flush=True)
sys.stdin.read()
"""
GROW = """
from services.chassis.process.resource_usage import _resident_bytes
held = next(_resident_bytes())[0]
more = b"x" * (64 << 20)  # written, so that each page is there
print(next(_resident_bytes())[0] - held)
del more
print(next(_resident_bytes())[0] - held)
"""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], Iterator[Any]]]:
    """Return what `watch` has read, by name."""
    found: dict[str, Callable[[], Iterator[Any]]] = {}
    monkeypatch.setattr(
        telemetry, "watch", lambda name, read, rises=False: found.update({name: read})
    )
    resource_usage.watch()
    return found


def value(read: Callable[[], Iterator[Any]]) -> float:
    return sum(number for number, _ in read())


def test_it_is_what_the_system_says(reads: dict[str, Callable[[], Iterator[Any]]]) -> None:
    before = os.times()
    spent = value(reads["process.cpu.time"])
    after = os.times()
    assert before.user + before.system <= spent <= after.user + after.system
    modes = [attributes["cpu.mode"] for _, attributes in reads["process.cpu.time"]()]
    assert modes == ["user", "system"]
    assert value(reads["process.memory.usage"]) > 1 << 20
    assert 0 < value(reads["process.uptime"]) < value(reads["process.uptime"])


def test_memory_is_what_a_process_holds_now() -> None:
    # In a small process of its own: of a large one the kernel takes pages of files away meanwhile.
    done = subprocess.run(
        [sys.executable, "-c", GROW], capture_output=True, text=True, timeout=60, check=True
    )
    more, less = map(float, done.stdout.split())
    assert more > 32 << 20 and less < 16 << 20


def test_time_of_processes_below_counts_while_they_run_and_after_they_ended() -> None:
    below = ProcessesBelow()
    ((before, _),) = below.read()
    child = subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == b"spent\n"
    ((running, _),) = below.read()
    assert running - before > 0.3
    child.communicate()
    ((ended, _),) = below.read()
    assert ended >= running


def test_a_total_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    below = ProcessesBelow()
    ticks = iter([500, 200, 600])  # one ended, and nobody waited for it
    monkeypatch.setattr(resource_usage, "_has_children", lambda: True)
    monkeypatch.setattr(resource_usage, "_ticks_below", lambda pid: next(ticks))
    first, second, third = (next(below.read())[0] for _ in range(3))
    assert first == second < third
