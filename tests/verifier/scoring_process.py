"""Scoring in a process of its own, as root or another user, on a kernel that lacks a feature.

A script of two steps: it gives up the features to lack, then scores the jobs in its argument and
prints the outcomes. A real seccomp filter refuses the missing features, as in a container.
"""

import asyncio
import ctypes
import errno
import json
import os
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOBODY = 65534
_PYTHON = (sys.executable, "-P", __file__)  # -P: this file's folder is not on the search path
_UNSHARE, _PRCTL, _SECCOMP = (272, 157, 317) if os.uname().machine == "x86_64" else (97, 167, 277)
# (number of the call, first argument or None for any, error)
_LACKS = {
    "namespaces": [(_UNSHARE, None, errno.EPERM)],
    "landlock": [(444, None, errno.ENOSYS)],
    "seccomp": [(_PRCTL, 22, errno.EINVAL), (_SECCOMP, None, errno.ENOSYS)],
}


def scored(
    jobs: Sequence[tuple[str, str]],
    folder: Path,
    *,
    user: bool = False,
    lacks: Sequence[str] = (),
    limits: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    width: int = 2,
    together: bool = False,
) -> list[Any]:
    """Return the outcomes of (module:function, completion): values, or reasons without one."""
    order = {
        "jobs": list(jobs),
        "user": user,
        "lacks": list(lacks),
        "limits": dict(limits or {}),
        "spec": dict(spec or {}),
    }
    order |= {"width": width, "together": together, "parent": os.getpid()}
    done = subprocess.run(
        command(order),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def command(order: Mapping[str, Any]) -> list[str]:
    """Return the command that starts the script."""
    return [*_PYTHON, "lack", json.dumps(order)]


def scratch(folder: Path) -> Path:
    """Make the folder of the scores' folders, open to any user."""
    made = folder.parent / "scratch"
    made.mkdir(exist_ok=True)
    made.chmod(0o1777)
    return made


def environment(folder: Path) -> dict[str, str]:
    """Return the script's variables: its folder and the checkout on the search path."""
    return {
        **os.environ,
        "PYTHONPATH": f"{folder}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(scratch(folder)),
    }


def _lack(order: Mapping[str, Any]) -> None:
    from services.verifier.sandbox.confinement import kernel, reachable

    if order["user"] and os.geteuid() == 0:
        # The interpreter may lie in a home that only root enters.
        wanted = [
            sys.base_prefix,
            sys.prefix,
            str(ROOT),
            *(path for path in sys.path if os.path.isdir(path)),
        ]
        assert reachable.make_reachable(wanted)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    rules = [rule for name in order["lacks"] for rule in _LACKS[name]]
    if rules:
        program = _filter(rules)
        filled = _Program(len(program) // 8, program)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.byref(filled))
    os.execv(sys.executable, [*_PYTHON, "score", json.dumps(order)])


class _Program(ctypes.Structure):
    _fields_ = (("steps", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _filter(rules: Sequence[tuple[int, int | None, int]]) -> bytes:
    code = [struct.pack("<HBBI", 0x20, 0, 0, 0)]
    for number, first, error in rules:
        if first is None:
            code += [struct.pack("<HBBI", 0x15, 0, 1, number)]
        else:
            code += [struct.pack("<HBBI", 0x15, 0, 4, number), struct.pack("<HBBI", 0x20, 0, 0, 16)]
            code += [
                struct.pack("<HBBI", 0x15, 1, 0, first),
                struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000),
            ]
        code += [struct.pack("<HBBI", 0x06, 0, 0, 0x00050000 | error)]
    return b"".join([*code, struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)])


async def _score(order: Mapping[str, Any]) -> list[Any]:
    from services.verifier.sandbox.confinement import kernel
    from services.verifier.sandbox.limits import Limits
    from services.verifier.sandbox.pool import Pool
    from services.verifier.sandbox.worker import ScorerSpec
    from services.verifier.scoring import Scoring

    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # as the service does it
    scoring = Scoring(Pool(Limits(**order["limits"]), width=order["width"]))
    given = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in order["spec"].items()
    }

    async def one(name: str, completion: str) -> Any:
        outcome = (await scoring.score(ScorerSpec(name, {}, **given), completion, {})).outcome
        return getattr(outcome, "value", getattr(outcome, "reason", None))

    try:
        if order["together"]:
            return list(await asyncio.gather(*(one(*job) for job in order["jobs"])))
        return [await one(*job) for job in order["jobs"]]
    finally:
        await scoring.close()


if __name__ == "__main__":
    found = json.loads(sys.argv[2])
    if sys.argv[1] == "lack":
        _lack(found)
    print(json.dumps(asyncio.run(_score(found))))
