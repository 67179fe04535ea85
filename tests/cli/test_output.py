"""What commands print: a model's words are never markup, nothing found is said, and an unwritable disk is one line."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from banyan.cli import main as main_module
from banyan.cli import report, runs
from banyan.cli.output import emit
from banyan.errors import NotFound
from banyan.v1 import runstore_service_pb2 as rs


@pytest.mark.parametrize("text", ["[/b]", "[red]x", "[/]", "\\[/x]"])
def test_words_of_a_model_are_printed_as_they_are(capsys: pytest.CaptureFixture[str], text: str) -> None:
    emit([{"text": text}], False, ("text",))
    emit({"text": text}, False)
    assert capsys.readouterr().out.count(text) == 2


def test_nothing_found_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    emit([], False, ("id", "reason"))
    assert capsys.readouterr().out == "none\n"
    emit([], True)
    assert capsys.readouterr().out == "[]\n"


def test_a_cause_with_brackets_is_printed_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = rs.Run(run_id="r", state=rs.RUN_STATE_FAILED, cause="reward: no such key [/answer]", folder=str(tmp_path))
    report._print_places(run, 1.0, tmp_path)
    assert "no such key [/answer]" in capsys.readouterr().out


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/data/trees.jsonl")

    monkeypatch.setattr(main_module, "app", full)
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: /data/trees.jsonl: No space left on device\n"


def checkpoint(folder: Path, name: str, step: int, size: int) -> None:
    made = folder / "checkpoints" / name
    made.mkdir(parents=True)
    (made / "model.safetensors").write_bytes(b"x" * 4)
    manifest = {"mark": {"learner_epoch": 1, "step": step}, "files": {"model.safetensors": {"bytes": size}}}
    (made / "manifest.json").write_text(json.dumps(manifest))


def test_only_a_whole_checkpoint_is_handed_on(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no checkpoint"):
        runs.newest_checkpoint(tmp_path)
    checkpoint(tmp_path, "step-00000002-epoch-1", 2, 4)
    checkpoint(tmp_path, "step-00000003-epoch-1", 3, 9)  # torn
    checkpoint(tmp_path, ".step-00000004-epoch-1.77", 4, 4)  # what a writer has aside
    checkpoint(tmp_path, "step-00000005-epoch-1", 5, 4)
    (tmp_path / "checkpoints" / "step-00000005-epoch-1" / "manifest.json").write_text("{")
    assert runs.newest_checkpoint(tmp_path).name == "step-00000002-epoch-1"
