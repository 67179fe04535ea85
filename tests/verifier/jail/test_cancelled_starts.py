"""A caller that leaves while the first code has its jail chosen leaves no process behind."""

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from banyan.programs.run import Limits, Run
from banyan.programs.session import Task
from services.verifier.jail.chosen import ChosenJail
from services.verifier.jail.chosen_sessions import ChosenSessions
from services.verifier.jail.zygote import Zygote

First = Callable[[Path], tuple[ChosenJail | ChosenSessions, Awaitable[Any]]]


def program(state: Path) -> tuple[ChosenJail, Awaitable[Any]]:
    jail = ChosenJail(state, sandbox="process")
    return jail, jail.run(Run("print(1)"))


def session(state: Path) -> tuple[ChosenSessions, Awaitable[Any]]:
    sessions = ChosenSessions(state, b"k" * 32)
    return sessions, sessions.do(Task("print(1)", None, Limits()))


def children() -> set[int]:
    """Return the children of this process."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(child) for path in tasks for child in path.read_text().split()}


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("first", [program, session])
async def test_a_first_call_that_is_cancelled_leaves_no_process_and_no_folder(
    first: First, after_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    before, folder = children(), tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    chosen, call = first(tmp_path / "state")
    with contextlib.suppress(TimeoutError):  # a fast machine has chosen by then
        async with asyncio.timeout(after_s):
            await call
    await chosen.close()
    await eventually(
        lambda: children() <= before and not list(folder.iterdir()), 10.0, "no process, no folder"
    )


@pytest.mark.parametrize("first", [program, session])
async def test_a_long_path_to_temporary_files_is_no_reason_to_refuse(
    first: First, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    chosen, call = first(tmp_path / "state")
    assert (await call).stdout == b"1\n"
    await chosen.close()


async def test_a_zygote_that_left_something_behind_is_not_used_again() -> None:
    for clean in (True, False):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ours.setblocking(False)
            zygote = Zygote(None, ours, "")  # type: ignore[arg-type]
            report = {"cause": "", "status": 0, "cpu_s": 0.0, "wall_s": 0.0, "clean": clean}
            theirs.send(json.dumps(report).encode())
            await zygote.run(Run(""))
        assert zygote.spent is not clean
