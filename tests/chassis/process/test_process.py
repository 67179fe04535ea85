"""A process that cannot stop does not outlive its launcher for long."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from banyan.errors import BanyanError, InvalidInput, NotReady, Refused, TemporaryError
from services.chassis.process import process

PARENT = """
import os, subprocess, sys, time
env = dict(os.environ, BANYAN_PARENT=str(os.getpid()))
command = [sys.executable, "-c", sys.argv[1]]
child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), flush=True)
time.sleep(60)
"""
CHILD = """
import asyncio, os
from services.chassis.process import process
async def run(stop):
    print(os.getpid(), flush=True)
    await stop.wait()
    await asyncio.sleep(60)  # as one that waits for a store that is gone
process.main("verifier", run, orphan_s=0.3)
"""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidInput("no"), 2),
        (NotReady("not this model"), 2),
        (TemporaryError("later"), 1),
        (Refused("stale"), 1),
    ],
)
def test_what_no_start_can_cure_is_not_started_again(error: BanyanError, status: int) -> None:
    assert (
        process.exit_status(error) == status
    )  # the supervisor gives up after two of status 2, after eight of others


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_an_orphan_that_waits_for_something_ends() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, signal.SIGTERM)  # its launcher lives and has a patience of its own
    time.sleep(0.6)
    assert alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(pid)
