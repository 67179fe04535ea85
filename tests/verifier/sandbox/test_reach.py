"""Paths in a home that only root may enter, mounted for a user without rights."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.verifier.sandbox.confinement.isolation import NOBODY

_SHOW = """
import json, os, sys
from services.verifier.sandbox.confinement import reachable
shown, asked, nobody = json.loads(sys.argv[1])
assert reachable.make_reachable(shown)
os.setgroups([])
os.setresgid(nobody, nobody, nobody)
os.setresuid(nobody, nobody, nobody)
def read(path):
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
print(json.dumps([read(path) for path in asked]))
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root has mounts of its own and becomes another user"
)


def seen(shown: Sequence[Path], asked: Sequence[Path]) -> list[str]:
    """Return what `nobody` reads of `asked` once `shown` is reachable for it."""
    order = json.dumps([[str(path) for path in shown], [str(path) for path in asked], NOBODY])
    done = subprocess.run(
        [sys.executable, "-c", _SHOW, order], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make a home that only its owner may enter, with a checkout, its environment, and a secret."""
    home = tmp_path / "home"
    for name in (
        "checkout/venv/lib/module.py",
        "checkout/venv/pyvenv.cfg",
        "checkout/own.py",
        "secret",
    ):
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    home.chmod(0o700)
    return home


def test_a_file_is_shown_as_a_file(home: Path) -> None:
    venv = home / "checkout" / "venv"
    parts = [venv / "lib", venv / "pyvenv.cfg"]
    asked = [venv / "lib" / "module.py", venv / "pyvenv.cfg", home / "secret"]
    assert seen(parts, asked) == [
        "checkout/venv/lib/module.py",
        "checkout/venv/pyvenv.cfg",
        "FileNotFoundError",
    ]


@pytest.mark.parametrize("turned", [False, True])
def test_a_folder_is_shown_whole_in_whatever_order_what_is_inside_it_was_named(
    home: Path, turned: bool
) -> None:
    named = [home / "checkout" / "venv" / "lib", home / "checkout"]
    asked = [home / "checkout" / "own.py", home / "checkout" / "venv" / "lib" / "module.py"]
    assert seen(named[::-1] if turned else named, asked) == [
        "checkout/own.py",
        "checkout/venv/lib/module.py",
    ]
