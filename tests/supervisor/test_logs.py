"""Large log files of processes are rotated, and no line of a quiet process is lost."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.supervisor import logs

_SPEAKER = """
import sys
for line in sys.stdin:
    first, last = map(int, line.split())
    for n in range(first, last):
        print(f"line {n:06d}")
    sys.stdout.flush()
    print("done", file=sys.stderr, flush=True)
"""
_LINE = len("line 000000\n")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 100 * _LINE)


def test_a_process_goes_on_in_the_same_file_and_the_oldest_copy_goes(
    tmp_path: Path, small: None
) -> None:
    path = tmp_path / "gateway.log"
    with path.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", _SPEAKER],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stdin is not None and process.stderr is not None
    for turn in range(6):
        process.stdin.write(f"{turn * 150} {turn * 150 + 150}\n")
        process.stdin.flush()
        assert process.stderr.readline() == "done\n"
        logs.rotate(tmp_path)
        assert path.stat().st_size == 0
    process.stdin.write("900 950\n")
    process.stdin.close()
    assert process.wait(10) == 0
    logs.rotate(tmp_path)
    files = [tmp_path / f"gateway.log.{n}" for n in (3, 2, 1)] + [path]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    lines = "".join(file.read_text() for file in files).splitlines()
    assert lines == [f"line {n:06d}" for n in range(450, 950)]
    process.stderr.close()


def test_small_files_are_left_alone(tmp_path: Path, small: None) -> None:
    (tmp_path / "nats.log").write_text("x" * 100)
    logs.rotate(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["nats.log"]


def test_a_copy_that_cannot_be_made_leaves_the_file(
    tmp_path: Path, small: None, monkeypatch: Any, caplog: Any
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    (tmp_path / "nats.log").write_text("x" * 5000)
    logs.rotate(tmp_path)
    assert (tmp_path / "nats.log").stat().st_size == 5000 and "No space left" in caplog.text


async def test_files_are_rotated_for_as_long_as_the_system_runs(
    tmp_path: Path, small: None, eventually: Any
) -> None:
    logs_folder, file = tmp_path, tmp_path / "nats.log"
    file.write_text("x" * 5000)
    async with logs.kept_small(logs_folder):
        await eventually(lambda: file.stat().st_size == 0)
    assert (tmp_path / "nats.log.1").stat().st_size == 5000
