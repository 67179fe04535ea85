"""Mappings are reused while their file lives, show its content, and end with it."""

import fcntl
import os
from pathlib import Path

from services.chassis.weights.mapping import Maps


def test_a_mapping_shows_what_its_file_holds_now(tmp_path: Path) -> None:
    maps = Maps()
    with open(tmp_path / "a", "w+b") as file:
        file.write(b"1" * 8192)
        file.flush()
        with open(tmp_path / "a", "rb") as reading:
            private = maps.private(reading, 8192)
        assert private[:3] == b"111" and private[5000:5003] == b"111"
        shared = maps.shared(file, 8192)
        shared[:5] = b"22222"
        os.rename(tmp_path / "a", tmp_path / "b")
        assert maps.shared(file, 8192) is shared
    with open(tmp_path / "b", "rb") as reading:
        assert maps.private(reading, 8192) is private
        assert private[:5] == reading.read(5) == b"22222"


def test_another_size_is_another_mapping(tmp_path: Path) -> None:
    maps = Maps()
    with open(tmp_path / "a", "w+b") as file:
        file.write(b"1" * 100)
        file.flush()
        assert len(maps.private(file, 100)) == 100
        file.write(b"2" * 100)
        file.flush()
        assert maps.private(file, 200)[150:152] == b"22"


def test_mappings_of_files_that_are_gone_and_too_many_are_let_go(tmp_path: Path) -> None:
    maps, open_before = Maps(limit=2), len(os.listdir("/proc/self/fd"))
    for name in "abcd":
        with open(tmp_path / name, "w+b") as file:
            file.write(name.encode() * 100)
            file.flush()
            maps.private(file, 100)
        assert (
            len(os.listdir("/proc/self/fd")) - open_before <= 4
        )  # Python keeps one more for each mapping
    (tmp_path / "c").unlink()
    with open(tmp_path / "d", "rb") as file:
        assert maps.private(file, 100)[:1] == b"d"
    assert len(os.listdir("/proc/self/fd")) - open_before == 2


def test_a_mapping_does_not_hold_the_lock_of_who_wrote_the_file(tmp_path: Path) -> None:
    maps = Maps()
    with open(tmp_path / "a", "w+b") as file:
        file.write(b"1" * 100)
        file.flush()
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        shared = maps.shared(file, 100)
    with open(tmp_path / "a", "rb") as reading:
        fcntl.flock(reading.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert maps.private(reading, 100)[:] == shared[:]
