"""The files that a score may read: interpreter, imported modules, folder of the scorer's module.

That folder is the user's, and may be a whole project's. Excluded from it are hidden files and
folders (.env, .git, a state folder), files that others may not read, files named like keys, and
what the caller withholds (the task's rows, credentials). A folder without exclusions is one
entry. The files of any other are named one by one, because Landlock grants by hierarchy and takes
nothing back.
"""

import functools
import importlib.machinery
import os
import re
import stat
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_SYSTEM = (
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/share",
    "/usr/include",
    "/usr/local/bin",
    "/usr/local/lib",
    "/usr/local/include",
    "/lib",
    "/lib64",
    "/bin",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/urandom",
    "/dev/null",
    "/dev/zero",
)
# Names of hosts and certificates, for what may use the network.
_NETWORK = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/run/systemd/resolve",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust",
)
_SITES = ("site-packages", "dist-packages")
_CODE = tuple(importlib.machinery.all_suffixes())
_KEYS = re.compile(r"\.(env|pem|key|p12|pfx|creds|nk|jwt|ppk|jks|keystore|kdbx)\Z")
_SECRETS = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)|kubeconfig|(credentials?|secrets?)(\.(json|ya?ml|toml|ini|txt))?",
    re.ASCII,
)
MOST = 10_000  # entries of a module's folder that are examined; with more only code is readable
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Readable:
    """The readable files of a scorer.

    paths: readable with all below them.
    listable: folders in which names may be listed.
    roots: folders that contain any of these.
    notices: warnings for the log.
    """

    paths: tuple[str, ...]
    listable: tuple[str, ...]
    roots: tuple[str, ...]
    notices: tuple[str, ...]


Inodes = frozenset[tuple[int, int]]


def of(
    modules: Collection[str],
    named: Iterable[str],
    withheld: Iterable[str],
    *,
    network: bool = False,
) -> Readable:
    """Return the files that a scorer of these modules may read, once they are imported.

    named: paths that the operator allows, readable as they are.
    withheld: paths that are excluded from the modules' folders.
    network: it may use the network, and reads how.
    """
    system = [*_SYSTEM, *interpreter()]
    folders, files = imported(modules, sys.modules, system)
    hidden = frozenset(inode for path in withheld for inode in _inodes(path))
    walk = _Walk(hidden)
    for folder in folders:
        walk.root(folder)
    single = [file for file in files if not any(_within(file, folder) for folder in folders)]
    operator = [path for path in named if Path(path).exists()]
    system += _NETWORK if network else ()
    present = [path for path in system if os.path.exists(path)]
    paths = dict.fromkeys([*present, *walk.paths, *single, *operator])
    roots = dict.fromkeys([*interpreter(), *folders, *map(os.path.dirname, single), *operator])
    return Readable(
        paths=tuple(paths),
        listable=tuple(walk.listable),
        roots=tuple(roots),
        notices=tuple(walk.notices),
    )


def interpreter() -> list[str]:
    """Return the standard library, installed packages and programs of this interpreter.

    A folder that is only on the search path is not among them.
    """
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
    modules: Collection[str], loaded: Mapping[str, ModuleType], known: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return folders and files of loaded modules that are not below the known paths.

    These are whole packages, the folders of the scorer's own modules, and single files of others.
    """
    known = {os.path.realpath(path) for path in known}
    real = functools.cache(os.path.realpath)  # of folders: modules share theirs
    folders: dict[str, None] = {}
    files: dict[str, None] = {}
    for name, loaded_module in list(loaded.items()):
        file = getattr(loaded_module, "__file__", None)
        # torch has modules whose file is a bare name.
        if not isinstance(file, str) or not os.path.isabs(file):
            continue
        if _below(real(os.path.dirname(file)), known):
            continue
        if packages := _package(loaded.get(name.partition(".")[0])):
            folders.update(dict.fromkeys(packages))
        elif name in modules:
            folders[os.path.dirname(file)] = None
        else:
            files[file] = None
    return list(folders), list(files)


def _package(module: ModuleType | None) -> list[str]:
    if module is None or module.__name__ == "__main__":
        return []
    paths = getattr(module, "__path__", ())
    return [os.path.abspath(path) for path in paths if os.path.isdir(path)]


def _below(folder: str, known: Set[str]) -> bool:
    while folder not in known and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder in known


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _inodes(path: str) -> Iterator[tuple[int, int]]:
    try:
        status = os.stat(path)
    except OSError:
        return
    yield status.st_dev, status.st_ino


class _Walk:
    """A walk through folders of modules, entry by entry."""

    def __init__(self, withheld: Inodes) -> None:
        self._withheld = withheld
        self._entries_left = MOST
        self.paths: list[str] = []
        self.listable: list[str] = []
        self.notices: list[str] = []

    def root(self, folder: str) -> None:
        """Add a module's folder, whatever its name and rights."""
        self._entries_left = MOST
        complete, paths = self._examine(folder, 0)
        if self._entries_left <= 0:
            self.notices.append(
                f"{folder} holds more than {MOST} entries: a scorer there reads only its modules;"
                " move it to a folder of its own, or name what it reads in BANYAN_SANDBOX_READ"
            )
            complete, paths = False, [path for path in paths if path.endswith(_CODE)]
        if complete:
            self.paths.append(folder)
        else:
            self.paths += paths
            self.listable.append(folder)

    def _examine(self, folder: str, depth: int) -> tuple[bool, list[str]]:
        """Return whether all of a folder may be read, and the readable paths in it."""
        complete = True
        paths: list[str] = []
        try:
            # The folder's own code first, in case that it has too many entries.
            entries = sorted(os.scandir(folder), key=lambda entry: (entry.is_dir(), entry.name))
        except OSError:
            return False, []
        for entry in entries:
            self._entries_left -= 1
            if self._entries_left <= 0 or depth > _MAX_DEPTH:
                return False, paths
            if entry.is_symlink():
                self._add_link(entry)
            elif not self._may_read(entry):
                complete = False
            elif entry.is_dir(follow_symlinks=False):
                inner_complete, inner_paths = self._examine(entry.path, depth + 1)
                paths += [entry.path] if inner_complete else inner_paths
                complete = complete and inner_complete
            else:
                paths.append(entry.path)
        return complete, paths

    def _may_read(self, entry: "os.DirEntry[str]") -> bool:
        name = entry.name
        if name.startswith(".") or _KEYS.search(name) or _SECRETS.fullmatch(name):
            return False
        try:
            status = entry.stat()
        except OSError:  # it has been removed meanwhile
            return False
        if (status.st_dev, status.st_ino) in self._withheld:
            return False
        if stat.S_ISDIR(status.st_mode):
            is_package = os.path.exists(os.path.join(entry.path, "__init__.py"))
            return status.st_mode & 0o005 == 0o005 or is_package
        if not stat.S_ISREG(status.st_mode):
            return False
        return name.endswith(_CODE) or bool(status.st_mode & 0o004)

    def _add_link(self, entry: "os.DirEntry[str]") -> None:
        """Add a module that is a link, as in a mounted ConfigMap.

        The target of any other link has a place of its own, or does not belong to the folder.
        """
        if not entry.name.endswith(_CODE) or not entry.is_file():
            return
        if not self._withheld.intersection(_inodes(entry.path)):
            self.paths.append(entry.path)
