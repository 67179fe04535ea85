"""The threads of a process follow its launcher's file, once a change, whatever the file holds."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from services.chassis.process import cores
from services.chassis.process.cores import CoreShare


def _terabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _written(path: Path) -> None:
    with contextlib.suppress(OSError):
        cores.write(path, 3)


def test_a_number_is_told_once_after_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "threads" / "learner-r-0"
    share = CoreShare(file, 2)
    assert share.changed() is None
    cores.write(file, 2)
    assert share.changed() is None
    cores.write(file, 1)
    assert share.changed() == 1 and share.changed() is None
    cores.write(file, 2)
    assert share.changed() == 2
    assert [path.name for path in file.parent.iterdir()] == ["learner-r-0"]


def test_what_is_no_number_of_threads_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "share"
    share = CoreShare(file, 2)
    for text in ("", "many", "0", "-1", "nan", "2.0", str(10**9), "4097"):
        file.write_text(text)
        assert share.changed() is None
    file.unlink()
    assert share.changed() is None and CoreShare(None, None).changed() is None


def test_two_writes_in_one_tick_of_the_clock_are_two_and_so_are_two_into_one_file(
    tmp_path: Path,
) -> None:
    file, tick = tmp_path / "share", 10**18
    share = CoreShare(file, 4)
    for threads in (3, 2, 1):
        cores.write(file, threads)
        os.utime(file, ns=(tick, tick))
        assert share.changed() == threads
    file.write_text("2")
    os.utime(file, ns=(tick, tick + 1))
    assert share.changed() == 2


def test_who_reads_while_it_is_written_has_the_old_number(tmp_path: Path) -> None:
    file = tmp_path / "share"
    cores.write(file, 12)
    with file.open() as reading:
        cores.write(file, 3)
        assert reading.read() == "12" and file.read_text() == "3"


@pytest.mark.parametrize(
    "lies", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path), _terabyte]
)
def test_what_lies_where_the_number_was_holds_up_no_step(
    tmp_path: Path, lies: Callable[[Path], None]
) -> None:
    """The thread that computes looks at it, and would wait at a pipe for ever."""
    lies(tmp_path / "share")
    share, seen = CoreShare(tmp_path / "share", 2), list[int | None]()
    thread = threading.Thread(target=lambda: seen.append(share.changed()), daemon=True)
    thread.start()
    thread.join(10.0)
    assert seen == [None]


@pytest.mark.parametrize(
    "lies", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.with_name("elsewhere"))]
)
def test_what_lies_where_the_launcher_writes_does_not_hold_it_up(
    tmp_path: Path, lies: Callable[[Path], None]
) -> None:
    lies(tmp_path / "share.partial")
    thread = threading.Thread(target=_written, args=[tmp_path / "share"], daemon=True)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive() and not (tmp_path / "elsewhere").exists()


def test_torch_computes_with_the_share_in_the_thread_that_asks(tmp_path: Path) -> None:
    file, seen = tmp_path / "share", list[int]()

    def work() -> None:
        torch.set_num_threads(1)
        settle = cores.follow(CoreShare(file, 1))
        settle()
        seen.append(torch.get_num_threads())
        cores.write(file, 2)
        settle()
        seen.append(torch.get_num_threads())
        torch.set_num_threads(1)

    before = torch.get_num_threads()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30.0)
    torch.set_num_threads(before)
    assert seen == [1, 2]
