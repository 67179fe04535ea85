"""`banyan eval` and `sample`: what they refuse before a model is loaded."""

import io
import sys
from pathlib import Path

import pytest

from banyan.cli.checkpoint import sample
from tests.cli.command import banyan
from tests.cli.folders import whole_model
from tests.cli.refusals import refused


@pytest.mark.parametrize("verb", ["eval", "sample"])
def test_a_folder_that_is_no_model_is_refused(verb: str, tmp_path: Path) -> None:
    more = ("--prompt", "x") if verb == "sample" else ()
    refused(banyan(verb, tmp_path, *more), "no model's folder: it has no config.json")
    (tmp_path / "adapter_config.json").touch()
    refused(banyan(verb, tmp_path, *more), "is an adapter; write the whole model with `banyan exp")


def test_a_folder_has_no_task_of_its_own(tmp_path: Path) -> None:
    model = whole_model(tmp_path)
    refused(banyan("eval", model), "is a folder, which has no task: name one with --task")
    refused(banyan("eval", model, "--set", "seed=1"), "--set changes the recipe of --task")
    refused(banyan("eval", model, "--task", "no-such"), "there is no recipe 'no-such'")


def test_a_task_without_held_out_rows_says_how_to_measure(tmp_path: Path) -> None:
    model = whole_model(tmp_path)
    said = banyan("eval", model, "--task", "quickstart", "--set", "task.holdout=0")
    refused(said, "holds out no row; --all-rows")


def test_answers_in_an_environment_are_refused(tmp_path: Path) -> None:
    refused(banyan("eval", whole_model(tmp_path), "--task", "calculator"), "within an environment")


def test_several_likeliest_answers_are_one(tmp_path: Path) -> None:
    model = whole_model(tmp_path)
    refused(banyan("eval", model, "-n", "2"), "--temperature 0 has one answer")
    wanted = ("--prompt", "x", "-n", "2", "--temperature", "0")
    refused(banyan("sample", model, *wanted), "--temperature 0 has one answer")
    refused(banyan("sample", model), "give a prompt with --prompt")


def test_a_line_that_is_no_utf_8_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    given = io.TextIOWrapper(io.BytesIO(b" hi \xff\n\n"), encoding="utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdin", given)
    assert [sample._asked(), sample._asked(), sample._asked()] == ["hi \ufffd", "", ""]
