"""Starting of Banyan's programs, independent of the content of the working folder.

`python -m` and PYTHONPATH search the working folder and the user's folders first, so a user's own
`services` or `methods` would be taken for ours. A user's code is found through BANYAN_PATH instead.
`python -m banyan.runtime.launch MODULE` runs a module of ours. Run by its path it does so in an
interpreter too that searches neither the working folder nor the user's packages, and wherever
Banyan lies.
"""

import importlib.util
import os
import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path

OURS = (sys.executable, "-P", "-m", "banyan.runtime.launch")
"""Command before the name of a module of ours, wherever another of that name lies."""
OURS_ISOLATED = (sys.executable, "-s", "-P", __file__)
"""The same for an interpreter that ignores the user's packages. It must get an environment without
PYTHONPATH; one that ignored all of it (-I) would ignore PYTHONHASHSEED, too."""
FOLDERS = "BANYAN_PATH"
"""Environment variable with the folders of a user's code, in the form of PYTHONPATH."""
OUR_PACKAGES = ("banyan", "methods", "services")
"""This package and those beside it; no module of a user can have their names."""
_ROOT = str(Path(__file__).parents[2])


def take_names() -> None:
    """Import our packages from the folder of this one, before any folder is searched."""
    for name in OUR_PACKAGES:
        spec = None if name in sys.modules else PathFinder.find_spec(name, [_ROOT])
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
    if not __package__ and _ROOT not in sys.path:
        # Packages that we need may lie beside ours. Last, so that they shadow nothing.
        sys.path.append(_ROOT)
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    try:
        _run(sys.argv[1])
    except ModuleNotFoundError as error:
        if __package__:
            raise
        sys.exit(f"{sys.executable}: {error}")  # the user's interpreter lacks what ours has
