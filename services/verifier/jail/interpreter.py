"""The files that a program may read: the interpreter's library, and what that loads."""

import os
import sys
import sysconfig

_SITES = ("site-packages", "dist-packages")
LIBRARIES = (
    *("/lib64", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu"),
    *("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
)
_DATA = ("/etc/ld.so.cache", "/usr/share/zoneinfo")


def listable() -> list[str]:
    """Return the folders of modules, which an import lists."""
    return list(dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")))


def readable() -> list[str]:
    """Return the paths; installed packages are not among them."""
    library = [
        os.path.join(folder, name)
        for folder in listable()
        for name in sorted(os.listdir(folder))
        if name not in _SITES
    ]
    shared = os.path.join(sys.base_exec_prefix, "lib")
    own = [
        os.path.join(shared, name)
        for name in sorted(os.listdir(shared))
        if name.startswith("libpython")
    ]
    return [path for path in (*library, *own, *LIBRARIES, *_DATA) if os.path.exists(path)]
