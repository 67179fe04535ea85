"""The lock of a state folder: who only asks whether a system runs is no system."""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from banyan.errors import Refused
from banyan.runtime import state_folder
from services.supervisor.state import StateFolder


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder.open(tmp_path / "state")
    made.lock()
    made.unlock()
    return made


def test_two_that_ask_at_once_see_no_system(folder: StateFolder) -> None:
    with open(folder.path / state_folder.LOCK) as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not state_folder.locked(folder.path)
    folder.lock()
    assert state_folder.locked(folder.path)
    folder.unlock()


def test_a_system_that_begins_waits_for_who_asks(folder: StateFolder) -> None:
    asking = open(folder.path / state_folder.LOCK)  # noqa: SIM115
    fcntl.flock(asking, fcntl.LOCK_SH)
    threading.Timer(0.05, asking.close).start()
    folder.lock()
    assert state_folder.locked(folder.path)
    folder.unlock()


def test_a_second_system_is_refused_and_told_who_runs(folder: StateFolder) -> None:
    folder.lock()
    with pytest.raises(Refused, match=f"in use by process {os.getpid()};"):
        StateFolder.open(folder.path).lock()
    folder.unlock()
