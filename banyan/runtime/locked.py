"""Hashes of locked packages: `python -m banyan.runtime.locked LOCK RESOLVED REPORT` puts them in.

RESOLVED is the lock as `uv pip compile --generate-hashes` writes it, with the digests of all files
that the index has of a version, so that other machines may install the lock, too. REPORT is what
`pip install --dry-run --report` would install here. If that is a build that the index has not, such
as a torch for CPUs, its digest stands alone: pip would prefer a file of the index whose digest is
allowed, which is another build. Only the standard library.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PINNED = re.compile(r"([\w.-]+)(\[[\w,-]+\])?==([^\s;\\]+)")
_DIGEST = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def canonical(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def versions(lock: str) -> dict[str, str]:
    """Return the version of each package of a lock, by canonical name, in its order."""
    lines = (line for line in lock.splitlines() if not line.startswith("#"))
    return {canonical(m[1]): m[3] for line in lines if (m := _PINNED.match(line))}


def digests(lock: str) -> dict[str, set[str]]:
    """Return the digests of each package of a lock with hashes, by canonical name."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in lock.splitlines():
        if match := _PINNED.match(line):
            name = canonical(match[1])
        found.setdefault(name, set()).update(_DIGEST.findall(line))
    found.pop("", None)
    return found


def hashed(lock: str, resolved: str, report: Mapping[str, Any]) -> str:
    """Return a lock with the digests of both; raise ValueError for a package without any."""
    known, here = digests(resolved), _reported(report)
    lines: list[str] = []
    for line in _plain(lock):
        match = None if line.startswith("#") else _PINNED.match(line)
        if match is None:
            lines.append(line)
            continue
        name = canonical(match[1])
        of_index, taken = known.get(name, set()), here.get(name, set())
        found = sorted(of_index if taken <= of_index else taken)
        if not found:
            raise ValueError(f"no file of {match[0]} is known to uv or pip, so it has no digest")
        lines.append(" \\\n".join([line, *(f"    --hash=sha256:{digest}" for digest in found)]))
    return "\n".join(lines) + "\n"


def _plain(lock: str) -> list[str]:
    """Return the lines of a lock without the digests that it has."""
    lines = [line for line in lock.splitlines() if not _DIGEST.search(line)]
    return [line.removesuffix("\\").rstrip() for line in lines]


def _reported(report: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the digests of what pip would install here."""
    return {
        canonical(one["metadata"]["name"]): {
            one["download_info"]["archive_info"]["hashes"]["sha256"]
        }
        for one in report["install"]
    }


if __name__ == "__main__":
    file, other, told = map(Path, sys.argv[1:])
    file.write_text(hashed(file.read_text(), other.read_text(), json.loads(told.read_text())))
