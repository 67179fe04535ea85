"""Raw cells: written at once, measured once, and never mixed with those of other settings."""

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import InvalidInput
from bench.harness import kept
from bench.harness.kept import Kept


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "commit_of", lambda *folders: "abc")


def test_a_cell_says_of_what_commit_and_when_it_is_and_is_measured_once(
    tmp_path: Path, committed: None
) -> None:
    calls: list[int] = []

    def measure() -> dict[str, Any]:
        calls.append(1)
        return {"seconds": [1.0], "accuracy": {2: 0.5}}

    first = Kept(tmp_path / "trl").get("sweep/bfloat16/8", {"steps": 3}, measure)
    repeated = Kept(tmp_path / "trl").get("sweep/bfloat16/8", {"steps": 3}, measure)
    raw = json.loads((tmp_path / "trl" / "sweep-bfloat16-8.json").read_text())
    assert first == repeated == raw and calls == [1]
    assert (raw["cell"], raw["commit"], raw["asked"], raw["accuracy"]) == (
        "sweep/bfloat16/8",
        "abc",
        {"steps": 3},
        {"2": 0.5},
    )
    assert datetime.fromisoformat(raw["date"]).tzinfo is not None


def test_what_was_measured_otherwise_is_refused(tmp_path: Path, committed: None) -> None:
    Kept(tmp_path).get("a", {"steps": 3}, lambda: {"x": 1})
    with pytest.raises(
        RuntimeError,
        match=r"a.json was measured with \{'steps': 3\}, now \{'steps': 11\} is asked; remove it",
    ):
        Kept(tmp_path).get("a", {"steps": 11}, lambda: {"x": 2})


def test_cells_are_chosen_by_their_beginnings_and_held_ones_are_always_there(
    tmp_path: Path, committed: None
) -> None:
    assert Kept(tmp_path, ["b"]).get("a/1", {}, lambda: {"x": 1}) is None
    assert not list(tmp_path.iterdir())
    Kept(tmp_path, ["a"]).get("a/1", {}, lambda: {"x": 1})
    stored = Kept(tmp_path, ["b"]).get("a/1", {}, lambda: {"x": 2})
    assert stored is not None and stored["x"] == 1


def test_a_measurement_that_fails_leaves_nothing(tmp_path: Path, committed: None) -> None:
    def fails() -> dict[str, Any]:
        raise RuntimeError("other token ids")

    with pytest.raises(RuntimeError, match="other token ids"):
        Kept(tmp_path).get("a", {}, fails)
    assert not list(tmp_path.iterdir())


def test_the_commit_says_whether_other_files_were_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        side = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *side, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(kept, "__file__", str(tmp_path / "harness" / "kept.py"))
    cells, tables = tmp_path / "kept", tmp_path / "results"
    cells.mkdir()
    tables.mkdir()
    for name in ("code.py", "kept/a.json", "results/trl.json"):
        (tmp_path / name).write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    head = kept.commit_of(cells, tables)
    assert len(head) == 40
    (cells / "a.json").write_text("2")
    (tables / "trl.json").write_text("2")
    (tmp_path / "new.txt").write_text("1")
    assert kept.commit_of(cells, tables) == head
    (tmp_path / "code.py").write_text("2")
    assert kept.commit_of(cells, tables) == f"{head}-changed"


def test_a_cell_that_another_process_measures_is_left_out(tmp_path: Path, committed: None) -> None:
    """The claim of a process that was killed is free again."""
    held = (
        "import fcntl, sys; file = open(sys.argv[1], 'w');"
        " fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", held, str(tmp_path / "a.lock")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        assert Kept(tmp_path).get("a", {}, lambda: {"x": 1}) is None
        other.kill()
    found = Kept(tmp_path).get("a", {}, lambda: {"x": 2})
    assert found is not None and found["x"] == 2
    assert not (tmp_path / "a.lock").exists()


@pytest.mark.parametrize("text", ["", '{"cell": "a/1", "ask', "[]", "{}", "\x80"])
def test_a_file_that_holds_no_cell_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "a-1.json").write_text(text, encoding="latin-1")
    with pytest.raises(RuntimeError, match=r"a-1\.json .*; remove it to measure anew"):
        Kept(tmp_path).get("a/1", {}, dict)


@pytest.mark.parametrize("where", ["a file", "a file/below"])
def test_a_folder_that_takes_no_cells_is_named_with_the_remedy(tmp_path: Path, where: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(InvalidInput, match=f"{where} takes no cells .*BENCH_KEPT"):
        Kept(tmp_path / where).get("sweep/8", {}, lambda: {})
