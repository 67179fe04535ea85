"""Starting of Banyan's programs, independent of the content of the working folder.

`python -m` and PYTHONPATH search the working folder and the user's folders first, so a user's own
`services` or `methods` would be taken for ours. A user's code is found through BANYAN_PATH instead.
"""

import os
import sys

OURS = (sys.executable, "-P", "-m")
"""Command before the name of a module of ours: the working folder is not searched."""
FOLDERS = "BANYAN_PATH"
"""Environment variable with the folders of a user's code, in the form of PYTHONPATH."""


def find_users_code() -> None:
    """Search the folders named in BANYAN_PATH before all others, like a script's own folder.

    Call it once our own packages are imported: packages of the same names there are then ignored.
    """
    named = [folder for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    sys.path[:0] = [folder for folder in named if folder not in sys.path]
