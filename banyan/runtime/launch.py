"""How programs of this package start each other, whatever lies in the working folder, and still find a user's code there.

`python -m` and PYTHONPATH look in those folders first: a user's own `services` or `methods` would be taken for ours.
`python -m banyan.runtime.launch MODULE` runs a module of ours.
"""

import importlib.util
import os
import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path

OURS = (sys.executable, "-P", "-m", "banyan.runtime.launch")
"""Before the name of a module of ours: neither the working folder nor PYTHONPATH has another."""
FOLDERS = "BANYAN_PATH"
"""The variable that names the folders of a user's code, as PYTHONPATH would."""
_PACKAGES = ("methods", "services")


def take_names() -> None:
    """Import our other packages from where this one lies, before any folder is searched for their names."""
    for name in _PACKAGES:
        spec = (
            None
            if name in sys.modules
            else PathFinder.find_spec(name, [str(Path(__file__).parents[2])])
        )
        if spec is not None and spec.loader is not None:
            sys.modules[name] = package = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(package)


def find_users_code() -> None:
    """Search the folders named in BANYAN_PATH, before all others, as a script's own folder is.

    To be called once our own packages are imported: what has their names there is then never looked at.
    """
    named = [folder for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    sys.path[:0] = [folder for folder in named if folder not in sys.path]


def _run(module: str) -> None:
    take_names()
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run(sys.argv[1])
