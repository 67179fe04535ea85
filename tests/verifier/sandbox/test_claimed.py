"""Guards remove the folder made for them, and refuse to start in any other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.verifier.jail import zygote
from services.verifier.sandbox.confinement import folders

ROOT = str(Path(__file__).parents[3])
JAIL = (*("-I", "-S", "-B", "-c"), zygote._MAIN, ROOT, "0")
SCORER = ("-c", "from services.verifier.sandbox.child import _main; _main()")


def started(arguments, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return how a process ended whose verifier is gone: its input is at its end."""
    return subprocess.run(
        (sys.executable, *arguments),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(folder.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("arguments", [SCORER, JAIL], ids=["scorer", "jail"])
@pytest.mark.parametrize("name", ["checkout", "banyan-scorer-x", "banyan-jail-x"])
def test_a_guard_started_by_hand_removes_nothing_that_was_there(tmp_path, arguments, name):
    folder = tmp_path / name
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref")
    ended = started(arguments, folder)
    assert (folder / ".git" / "HEAD").read_text() == "ref"
    assert ended.returncode == 1
    assert repr(str(folder)) in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("arguments", [SCORER, JAIL], ids=["scorer", "jail"])
def test_nor_an_empty_folder_that_is_not_its_own(tmp_path, arguments):
    folder = tmp_path / "mine"
    folder.mkdir()
    assert started(arguments, folder).returncode == 1
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("arguments", "prefix"),
    [(SCORER, folders.SCORER), (JAIL, folders.JAIL)],
    ids=["scorer", "jail"],
)
def test_a_guard_whose_verifier_is_gone_removes_the_folder_made_for_it(tmp_path, arguments, prefix):
    folder = tmp_path / f"{prefix}new"
    folder.mkdir()
    started(arguments, folder)
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_folder_of_another_user_is_not_claimed(tmp_path, monkeypatch):
    folder = tmp_path / f"{folders.SCORER}x"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert folders.claimed(folders.SCORER) == str(folder)
    os.chown(folder, 65534, 65534)
    with pytest.raises(SystemExit, match="not in"):
        folders.claimed(folders.SCORER)
