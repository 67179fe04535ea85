"""`banyan doctor` demands of a disk and of a model the needs of a run."""

import errno
import os
from collections import namedtuple
from pathlib import Path

import pytest

from banyan.cli.doctor import doctor
from banyan.cli.train import scorer_checks
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from services.verifier.sandbox.confinement import trial
from tests.cli.folders import whole_model

Usage = namedtuple("Usage", "total used free")


def _free(monkeypatch: pytest.MonkeyPatch, free: float) -> list[Path]:
    asked: list[Path] = []

    def usage(path: Path) -> Usage:
        asked.append(path)
        return Usage(100 << 30, 0, int(free * 2**30))

    monkeypatch.setattr(doctor.shutil, "disk_usage", usage)
    return asked


def test_the_disk_is_the_one_that_the_state_folder_will_lie_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _free(monkeypatch, 6.0)
    assert doctor._disk(tmp_path / "not" / "yet") == f"6 GiB free at {tmp_path}"
    assert asked == [tmp_path]


def test_little_room_is_too_little_for_checkpoints_not_for_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _free(monkeypatch, 4.0)
    with pytest.raises(
        OSError, match=r"4\.0 GiB free .* a run starts, but the checkpoints .* need about 5 GiB"
    ):
        doctor._disk(tmp_path)


def test_a_model_without_a_tokenizer_is_no_model_for_a_run(tmp_path: Path) -> None:
    model = whole_model(tmp_path)
    assert doctor._model(model) == model
    (Path(model) / "tokenizer.json").unlink()
    with pytest.raises(InvalidInput, match="has no tokenizer"):
        doctor._model(model)


def test_a_machine_that_cannot_confine_scorers_is_said_and_no_run_begins_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "Landlock" in doctor._sandbox() and "seccomp filters" in doctor._sandbox()
    monkeypatch.setattr(trial, "missing", lambda: [trial.LANDLOCK])
    with pytest.raises(
        OSError,
        match=r"lacks Landlock .*allow_unconfined_scorers: true in the recipe, or BANYAN_ALLOW_UNC",
    ):
        doctor._sandbox()
    task = {"name": "reasoning-gym", "dataset": "chain_sum"}
    recipe = Recipe.model_validate({"name": "r", "model": "m", "task": task})
    with pytest.raises(
        InvalidInput,
        match=r"'reasoning-gym': this machine cannot confine scorers: it lacks Landlock",
    ):
        scorer_checks.check(recipe, [])
    scorer_checks.check(recipe.model_copy(update={"allow_unconfined_scorers": True}), [])
    scorer_checks.check(
        Recipe.model_validate({"name": "r", "model": "m", "task": {"name": "arithmetic"}}), []
    )
    monkeypatch.setenv("BANYAN_ALLOW_UNCONFINED_SCORERS", "1")
    scorer_checks.check(recipe, [])


def test_a_folder_without_the_right_to_it_is_named_without_a_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def denied(**_: object) -> None:
        file = str(tmp_path / "tmp3f5a")
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", denied)
    found = {name: (ok, detail) for name, ok, detail in doctor._checks("m", tmp_path)}
    assert found["disk"] == (
        False,
        f"{tmp_path}: Permission denied; run as a user with access to it, or name another folder",
    )
    busy = OSError(errno.EADDRINUSE, "Address already in use")
    assert doctor._explained(busy) == "Address already in use"
