"""Attempts to take more than a run may, or to leave something, run as a program in the jail.

This file is the program, with a call of `main` behind it. It imports nothing of ours.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

Trap = dict[str, Any]


def main(name: str) -> None:
    """Run one attempt and print what it got, a line each."""
    trap = json.load(sys.stdin)
    for hole in ATTEMPTS[name](trap):
        print(hole, flush=True)


def memory(trap: Trap) -> Iterator[str]:
    """Take more memory than is allowed, in one process and in several; say each step of 4 MB."""
    with contextlib.suppress(OSError):
        for _ in range(4):
            if os.fork() == 0:
                break
    taken: list[bytearray] = []
    with contextlib.suppress(MemoryError):
        while len(taken) < trap["memory_mb"]:
            taken.append(bytearray(os.urandom(64)) * (1 << 16))
            os.write(1, b"took 4\n")
            time.sleep(0.002)
    time.sleep(0.1)
    os._exit(0)
    yield  # a generator, as the others


def disk(trap: Trap) -> Iterator[str]:
    """Write more than is allowed in several files, steadily."""
    part, size = os.urandom(1 << 20), 0
    with contextlib.suppress(OSError):
        for number in range(8 * trap["disk_mb"]):
            with open(f"part{number}", "wb") as file:
                file.write(part)
            size += 1
            time.sleep(0.005)
    if size > trap["disk_mb"] + 16:
        yield f"{size} MB on disk"


def files(trap: Trap) -> Iterator[str]:
    """Make more files than are allowed, steadily."""
    count = 0
    with contextlib.suppress(OSError):
        for number in range(40 * trap["most_files"]):
            os.mkdir(f"folder{number}")
            count += 1
            if number % 50 == 49:
                time.sleep(0.005)
    if count > 20 * trap["most_files"]:
        yield f"{count} files"


def processes(trap: Trap) -> Iterator[str]:
    """Start more processes and threads than are allowed."""
    count = threads = 0
    with contextlib.suppress(OSError):
        while count < 100:
            if os.fork() == 0:
                time.sleep(60)  # a jail that waits for it is one that leaves it
                os._exit(0)
            count += 1
    wait = threading.Event()
    with contextlib.suppress(RuntimeError):
        while threads < 100:
            threading.Thread(target=wait.wait, daemon=True).start()
            threads += 1
    wait.set()
    # Where the kernel counts a user's processes, others that end make room for as many; then the
    # watch over the sum must end them, at once and not after seconds.
    if count > trap["most_processes"] + trap["room"]:
        yield f"{count} processes"
    elif count > trap["most_processes"]:
        time.sleep(5)
        yield f"{count} processes for seconds"
    if threads > 2 * trap["most_processes"]:
        yield f"{threads} threads"


def daemon(trap: Trap) -> Iterator[str]:
    """Leave a process behind that writes after the run has ended."""
    with contextlib.suppress(OSError):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(0.05)
                with open(trap["writable"][0], "ab") as file:
                    file.write(b"daemon")
            os._exit(0)
    yield from ()


def leaves(trap: Trap) -> Iterator[str]:
    """Leave state for the next run: files, a folder of great depth, a mark in a module."""
    for place in trap["places"]:
        with contextlib.suppress(OSError), open(place, "w") as file:
            file.write("left")
    with contextlib.suppress(OSError):
        for _ in range(trap["most_files"]):
            os.mkdir("deep" * 50)
            os.chdir("deep" * 50)
    json.__dict__["left"] = True
    yield from ()


def finds(trap: Trap) -> Iterator[str]:
    """Find what `leaves` left in an earlier run."""
    yield from (f"{place} of an earlier run" for place in trap["places"] if os.path.exists(place))
    yield from (f"entry {name:.40} of an earlier run" for name in os.listdir("."))
    if "left" in json.__dict__:
        yield "a module of an earlier run"


def frames(trap: Trap) -> Iterator[str]:
    """Send a runner's word over every descriptor, then end with another status."""
    word = {"cause": "", "status": 0, "cpu_s": 0, "wall_s": 0, "clean": True}
    for handle in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(handle, json.dumps(word).encode())
    os._exit(3)
    yield


ATTEMPTS: dict[str, Callable[[Trap], Iterator[str]]] = {
    attempt.__name__: attempt
    for attempt in (daemon, memory, disk, files, processes, leaves, finds, frames)
}
