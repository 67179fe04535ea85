"""The interpreters of children: the verifier's own, or one that an environment names."""

import os
import sys

from banyan.errors import InvalidInput


def found(python: str) -> str:
    """Return the path of an interpreter; the verifier's own for none.

    Raises InvalidInput if there is no such program.
    """
    if not python:
        return sys.executable
    path = os.path.abspath(os.path.expanduser(python))
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise InvalidInput(
            f"environment.python {python}: {path} is no interpreter; make one for an environment"
            " that Banyan knows with `make environments NAME`, or name your own"
        )
    return path


def users_path() -> list[str]:
    """Return the part of the search path that is no interpreter's: folders of users' code.

    Another interpreter has a standard library and packages of its own.
    """
    prefixes = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)}
    return [path for path in sys.path if not _within(path, prefixes)]


def _within(path: str, prefixes: set[str]) -> bool:
    real = os.path.realpath(path)
    return any(real == prefix or real.startswith(f"{prefix}/lib") for prefix in prefixes)
