"""Invocation of this command, so that the commands it proposes work as they are typed."""

import shlex
import shutil
import sys
from pathlib import Path

from banyan.cli.options import DEFAULT_STATE


def me() -> str:
    """Return `banyan` if the shell finds this program by that name, else its path.

    For a module run with -m, return the interpreter and the module; for a script or a notebook that
    called banyan.train, `banyan` if there is one.
    """
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return _module()
    if called.stem != "banyan":
        return "banyan" if shutil.which("banyan") else _module()
    on_path = shutil.which(called.name)
    if on_path is not None and Path(on_path).resolve() == called.resolve():
        return called.name
    return shlex.quote(_short(called))


def proposed(words: str, state: Path = DEFAULT_STATE) -> str:
    """Return a command on the same state folder."""
    where = "" if state == DEFAULT_STATE else f" --state {shlex.quote(str(state))}"
    return f"{me()} {words}{where}"


def _module() -> str:
    return f"{shlex.quote(_short(Path(sys.executable)))} -m banyan.cli"


def _short(path: Path) -> str:
    """Return the path, relative to the working folder if inside it.

    Links are not resolved: an environment's python is one.
    """
    whole = Path.cwd() / path
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(whole)
