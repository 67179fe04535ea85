"""How this command was called, so that the commands it proposes work as they are typed."""

import shlex
import shutil
import sys
from pathlib import Path

from banyan.cli.options import DEFAULT_STATE


def me() -> str:
    """`banyan` where the shell finds this one by that name, else its path, or the module with its interpreter."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(_short(Path(sys.executable)))} -m banyan.cli"
    found = shutil.which(called.name)
    if found is not None and Path(found).resolve() == called.resolve():
        return called.name
    return shlex.quote(_short(called))


def proposed(words: str, state: Path = DEFAULT_STATE) -> str:
    """A command on the same state folder."""
    where = "" if state == DEFAULT_STATE else f" --state {shlex.quote(str(state))}"
    return f"{me()} {words}{where}"


def _short(path: Path) -> str:
    """From the working folder if it lies in it. Links stay: an environment's python is one."""
    whole = Path.cwd() / path
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(whole)
