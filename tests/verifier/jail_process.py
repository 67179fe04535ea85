"""The battery in a process of its own, as this user or as another; a script of two steps."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
NOBODY = 65534


def holes(order: dict[str, Any]) -> dict[str, Any]:
    """Return the holes of order["backend"], its version, and why it was refused.

    order["user"]: try it as another user than root.
    """
    done = subprocess.run(
        [sys.executable, "-P", __file__, "become", json.dumps(order)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def become(order: dict[str, Any]) -> None:
    """Become another user, with the interpreter and this checkout in reach; then go on."""
    from services.verifier.sandbox.confinement import reachable

    if order["user"]:
        folders = [path for path in sys.path if os.path.isdir(path)]
        assert reachable.make_reachable([sys.base_prefix, sys.prefix, str(REPOSITORY), *folders])
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execv(sys.executable, [sys.executable, "-P", __file__, "try", json.dumps(order)])


async def attempted(order: dict[str, Any]) -> dict[str, Any]:
    """Return the holes of a back end, and what its choice says."""
    from banyan.errors import InvalidInput
    from services.verifier.jail.battery import battery, language
    from services.verifier.jail.monty_jail import MontyJail, proven
    from services.verifier.jail.port import Jail
    from services.verifier.jail.select import choose

    try:
        with tempfile.TemporaryDirectory() as state:
            if order["backend"] == "monty":
                jail: Jail = MontyJail(await proven(Path(state)))
                holes_of = language.holes
            else:
                jail = await choose(Path(state), backends=[order["backend"]])
                holes_of = battery.holes
    except InvalidInput as error:
        return {"refused": str(error), "holes": [], "version": ""}
    try:
        return {"refused": "", "holes": await holes_of(jail), "version": jail.version}
    finally:
        await jail.close()


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    if sys.argv[1] == "become":
        become(given)
    print(json.dumps(asyncio.run(attempted(given))))
