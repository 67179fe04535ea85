"""Starting of Banyan's programs, independent of the content of the working folder.

`python -m` and PYTHONPATH search the working folder and the user's folders first, so a user's own
`services` or `methods` would be taken for ours. A user's code is found through BANYAN_PATH instead.
`python -m banyan.runtime.launch MODULE` runs a module of ours.
"""

import importlib.util
import os
import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path

OURS = (sys.executable, "-P", "-m", "banyan.runtime.launch")
"""Command before the name of a module of ours, wherever another of that name lies."""
FOLDERS = "BANYAN_PATH"
"""Environment variable with the folders of a user's code, in the form of PYTHONPATH."""
OUR_PACKAGES = ("methods", "services")
"""Packages beside this one; no module of a user can have their names."""


def take_names() -> None:
    """Import our other packages from the folder of this one, before any folder is searched."""
    root = str(Path(__file__).parents[2])
    for name in OUR_PACKAGES:
        spec = None if name in sys.modules else PathFinder.find_spec(name, [root])
        if spec is not None and spec.loader is not None:
            sys.modules[name] = package = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(package)


def find_users_code() -> None:
    """Search the folders named in BANYAN_PATH before all others, like a script's own folder.

    Call it once our own packages are imported: packages of the same names there are then ignored.
    """
    named = [folder for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    sys.path[:0] = [folder for folder in named if folder not in sys.path]


def _run(module: str) -> None:
    take_names()
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run(sys.argv[1])
