"""The files that a score may read: the interpreter, modules that are imported, and the folder of the scorer's own module.

Such a folder is the user's, and may be that of a whole project. Left out of it are hidden files
and folders (.env, .git, a state folder), what others may not read, files named like keys, and
what the caller withholds (the task's rows, credentials). A folder in which nothing is left out is
one entry; otherwise its files are named one by one, because Landlock allows by hierarchy and
takes nothing back.
"""

import functools
import importlib.machinery
import os
import re
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_SYSTEM = (
    *(
        "/usr/bin",
        "/usr/lib",
        "/usr/lib32",
        "/usr/lib64",
        "/usr/libexec",
        "/usr/share",
        "/usr/include",
    ),
    *("/usr/local/bin", "/usr/local/lib", "/usr/local/include"),
    *(
        "/lib",
        "/lib64",
        "/bin",
        "/etc/ld.so.cache",
        "/etc/localtime",
        "/dev/urandom",
        "/dev/null",
        "/dev/zero",
    ),
)
_SITES = ("site-packages", "dist-packages")
_CODE = tuple(importlib.machinery.all_suffixes())
_KEYS = (
    ".env",
    ".pem",
    ".key",
    ".p12",
    ".pfx",
    ".creds",
    ".nk",
    ".jwt",
    ".ppk",
    ".jks",
    ".keystore",
    ".kdbx",
)
_KEPT = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)|kubeconfig|(credentials?|secrets?)(\.(json|ya?ml|toml|ini|txt))?",
    re.ASCII,
)
MOST = 10_000  # entries of a module's folder that are looked at; beyond them only code is readable
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Readable:
    """Paths that may be read with all below them, folders in which names may be listed, and folders that hold any of it."""

    paths: tuple[str, ...]
    listable: tuple[str, ...]
    roots: tuple[str, ...]
    notices: tuple[str, ...]


Inodes = frozenset[tuple[int, int]]


def of(module: str, named: Iterable[str], withheld: Iterable[str]) -> Readable:
    """What a scorer of this module may read, once it is imported; `named` by the operator are readable as they are."""
    system = [*_SYSTEM, *interpreter()]
    folders, files = imported(module, sys.modules, system)
    hidden = frozenset(found for path in withheld for found in _inodes(path))
    walk = _Walk(hidden)
    for folder in folders:
        walk.root(folder)
    inside = [file for file in files if not any(_within(file, folder) for folder in folders)]
    operator = [path for path in named if Path(path).exists()]
    paths = dict.fromkeys(
        [*(p for p in system if os.path.exists(p)), *walk.paths, *inside, *operator]
    )
    roots = dict.fromkeys([*interpreter(), *folders, *map(os.path.dirname, inside), *operator])
    return Readable(tuple(paths), tuple(walk.listable), tuple(roots), tuple(walk.notices))


def interpreter() -> list[str]:
    """Standard library, installed packages and programs of this interpreter; no folder that is only on the search path."""
    prefixes = dict.fromkeys((sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix))
    parts = [
        os.path.join(prefix, part)
        for prefix in prefixes
        for part in ("bin", "lib", "lib64", "share", "pyvenv.cfg")
    ]
    named = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    sites = [path for path in sys.path if os.path.basename(path.rstrip("/")) in _SITES]
    return [path for path in dict.fromkeys([*parts, *named, *sites]) if os.path.exists(path)]


def imported(
    module: str, loaded: Mapping[str, ModuleType], known: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Folders and files of loaded modules that do not lie in what is known: whole packages, the folder of the scorer's own
    module, and single files of all others."""
    known = {os.path.realpath(path) for path in known}
    real = functools.cache(os.path.realpath)  # of folders: modules share theirs
    folders: dict[str, None] = {}
    files: dict[str, None] = {}
    for name, one in list(loaded.items()):
        file = getattr(one, "__file__", None)
        top = loaded.get(name.partition(".")[0])
        # torch has modules whose file is a bare name.
        if (
            not isinstance(file, str)
            or not os.path.isabs(file)
            or _below(real(os.path.dirname(file)), known)
        ):
            continue
        if packages := _package(top):
            folders.update(dict.fromkeys(packages))
        elif name == module:
            folders[os.path.dirname(file)] = None
        else:
            files[file] = None
    return list(folders), list(files)


def _package(module: ModuleType | None) -> list[str]:
    if module is None or module.__name__ == "__main__":
        return []
    return [
        os.path.abspath(path) for path in getattr(module, "__path__", ()) if os.path.isdir(path)
    ]


def _below(folder: str, known: Set[str]) -> bool:
    while folder not in known and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder in known


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _inodes(path: str) -> Iterator[tuple[int, int]]:
    try:
        found = os.stat(path)
    except OSError:
        return
    yield found.st_dev, found.st_ino


class _Walk:
    """Folders of modules, entry by entry."""

    def __init__(self, withheld: Inodes) -> None:
        self._withheld, self._left = withheld, MOST
        self.paths: list[str] = []
        self.listable: list[str] = []
        self.notices: list[str] = []

    def root(self, folder: str) -> None:
        """Take in a module's folder, whatever its name and rights."""
        self._left = MOST
        whole, paths = self._looked(folder, 0)
        if self._left <= 0:
            self.notices.append(
                f"{folder} holds more than {MOST} entries: a scorer there reads only its modules; move it to a folder of its"
                " own, or name what it reads in BANYAN_SANDBOX_READ"
            )
            paths, whole = [path for path in paths if path.endswith(_CODE)], False
        self.paths += [folder] if whole else paths
        self.listable += [] if whole else [folder]

    def _looked(self, folder: str, depth: int) -> tuple[bool, list[str]]:
        """Whether all of a folder may be read, and what of it may."""
        whole, paths = True, list[str]()
        try:
            entries = sorted(
                os.scandir(folder), key=lambda entry: (entry.is_dir(), entry.name)
            )  # code of the folder first
        except OSError:
            return False, []
        for entry in entries:
            self._left -= 1
            if self._left <= 0 or depth > _DEEPEST:
                return False, paths
            if entry.is_symlink():
                self._link(entry)
            elif not self._open(entry):
                whole = False
            elif entry.is_dir(follow_symlinks=False):
                all_of_it, inner = self._looked(entry.path, depth + 1)
                paths += [entry.path] if all_of_it else inner
                whole = whole and all_of_it
            else:
                paths.append(entry.path)
        return whole, paths

    def _open(self, entry: "os.DirEntry[str]") -> bool:
        if entry.name.startswith(".") or entry.name.endswith(_KEYS) or _KEPT.fullmatch(entry.name):
            return False
        try:
            found = entry.stat()
        except OSError:  # a link to nothing
            return False
        if (found.st_dev, found.st_ino) in self._withheld:
            return False
        if stat.S_ISDIR(found.st_mode):
            return found.st_mode & 0o005 == 0o005 or os.path.exists(
                os.path.join(entry.path, "__init__.py")
            )
        return stat.S_ISREG(found.st_mode) and (
            entry.name.endswith(_CODE) or bool(found.st_mode & 0o004)
        )

    def _link(self, entry: "os.DirEntry[str]") -> None:
        """A module may be a link, as in a mounted ConfigMap. What else a link leads to has a place of its own, or is not the
        folder's."""
        if (
            entry.name.endswith(_CODE)
            and entry.is_file()
            and not self._withheld.intersection(_inodes(entry.path))
        ):
            self.paths.append(entry.path)
