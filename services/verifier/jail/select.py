"""The choice of a jail: the strongest back end that the machine allows and that has no hole."""

import contextlib
import json
import logging
import platform
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from banyan.digest import blake
from banyan.errors import InvalidInput
from services.chassis.process import private_files
from services.verifier.jail.battery import battery
from services.verifier.jail.pool import ZygotePool
from services.verifier.jail.port import Jail

log = logging.getLogger(__name__)
BACKENDS = ("namespaces", "process")
"""Strongest first."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STATUS = Path("/proc/self/status")
_OURS = Path(__file__).parent
Holes = Callable[[Jail], Awaitable[list[str]]]


async def choose(state: Path, *, width: int = 2, backends: Sequence[str] = BACKENDS) -> ZygotePool:
    """Return the first back end that starts and that no attempt of the battery breaks out of.

    state: folder in which proofs are kept.

    Raises InvalidInput with each back end's reason if there is none.
    """
    reasons = []
    for backend in backends:
        jail = ZygotePool(backend, width=width)
        try:
            async with contextlib.AsyncExitStack() as undo:  # of a choice that is cancelled, too
                undo.push_async_callback(jail.close)
                await jail.check()
                await prove(jail, backend, state, battery.holes)
                undo.pop_all()
        except OSError as error:
            reasons.append(f"{backend}: {error}")
            continue
        return jail
    raise InvalidInput("this machine cannot run programs that nobody trusts: " + "; ".join(reasons))


async def prove(jail: Jail, backend: str, state: Path, holes_of: Holes) -> None:
    """Run a battery unless it was passed here before. Raises OSError with the holes."""
    key, file = _key(backend), state / private_files.JAIL_PROOFS
    proofs = _proofs(file)
    if proofs.get(backend) == key:
        return
    if holes := await holes_of(jail):
        raise OSError(f"the battery found {len(holes)} holes: {'; '.join(holes)[:500]}")
    try:
        state.mkdir(private_files.MODE, parents=True, exist_ok=True)
        private_files.write(file, json.dumps({**proofs, backend: key}).encode())
    except OSError as error:  # the battery runs at the next start again
        log.warning("the jail's proof cannot be kept: %s", error)


def _proofs(file: Path) -> dict[str, str]:
    try:
        proofs = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return proofs if isinstance(proofs, dict) else {}


def _key(backend: str) -> str:
    """Return a digest of all that a proof depends on: code, interpreter, kernel, rights, boot."""
    rights = [line for line in _STATUS.read_text().splitlines() if line.startswith(("Cap", "Uid"))]
    sources = [path.read_bytes() for path in sorted(_OURS.rglob("*.py"))]
    facts = [backend, sys.version, sys.executable, *platform.uname(), _BOOT.read_text(), *rights]
    return blake(*sources, *(fact.encode() for fact in facts)).hex()
