"""How programs of this package start each other, whatever lies in the working folder, and still find a user's code there.

`python -m` and PYTHONPATH look in those folders first: a user's own `services` or `methods` would be taken for ours.
"""

import os
import sys

OURS = (sys.executable, "-P", "-m")
"""Before the name of a module of ours: the working folder is not searched."""
FOLDERS = "BANYAN_PATH"
"""The variable that names the folders of a user's code, as PYTHONPATH would."""


def find_users_code() -> None:
    """Search the folders named in BANYAN_PATH, before all others, as a script's own folder is.

    To be called once our own packages are imported: what has their names there is then never looked at.
    """
    named = [folder for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    sys.path[:0] = [folder for folder in named if folder not in sys.path]
