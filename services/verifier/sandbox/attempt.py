"""One score, in a process forked for it: confined, then the scorer's code, then one frame back. Never returns."""

import io
import math
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from banyan.plugins import GroupScorer, Repair, Scored, Scorer, Unscorable
from banyan.plugins.filter import MOST_REPAIR
from services.verifier.sandbox import frames, limits
from services.verifier.sandbox.confinement import kernel, landlock, seccomp

_REASON_CHARACTERS = 500
_MOST_PARTS = 64  # the parent checks it again; more would not fit through the pipe
_PRINTED_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Confinement:
    """What an attempt is put under."""

    limits: limits.Limits
    others: int
    """Threads of its user beside it."""
    user: int | None
    """The user that it becomes; None for the verifier's own."""
    reading: int | None
    """The Landlock domain of what may be read; None where there is no Landlock, which the recipe allowed."""
    filtered: bool
    """Whether system calls are filtered; not where the machine has no filters and the recipe allowed that."""
    signals: bool
    """Whether signals can be left to it, because they reach nothing outside."""
    modes: bool
    """Whether modes and times of files can be left to it, because its user owns no others than its own."""
    parent: int
    """The process that forks attempts; none outlives it."""


class Printed(io.RawIOBase):
    """Behind stdout or stderr of Python code: keeps the first bytes that both are given, and forgets the rest."""

    def __init__(self, kept: bytearray) -> None:
        super().__init__()
        self._kept = kept

    def writable(self) -> bool:
        """Always."""
        return True

    def fileno(self) -> int:
        """Of /dev/null, for who hands it on to another process."""
        return 1

    def write(self, data: Any) -> int:
        """Takes all of it."""
        given = bytes(data)
        self._kept += given[: max(0, _PRINTED_BYTES - len(self._kept))]
        return len(given)


def _stream(kept: bytearray) -> io.TextIOWrapper:
    raw: Any = Printed(kept)
    return io.TextIOWrapper(raw, "utf-8", "replace", write_through=True)


def run(
    scorer: Scorer | GroupScorer,
    request: Mapping[str, Any],
    reply: int,
    keep: Confinement,
    folder: str,
) -> None:
    """Scores and ends the process."""
    printed = bytearray()
    try:
        try:
            confine(keep, reply, folder)
            sys.stdout, sys.stderr = _stream(printed), _stream(printed)
            message = outcome(scorer, request)
        except BaseException as error:
            # The scorer may raise what it likes, SystemExit included: all of it is its answer.
            message = {"unscorable": _said(error)}
        frames.write(
            reply, message | ({"printed": printed.decode("utf-8", "replace")} if printed else {})
        )
    finally:
        os._exit(0)  # whatever happened: what follows is the warm child's


def outcome(scorer: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """The scorer's word as a message: on one completion, or on all of a group."""
    if "completions" not in request:
        return _said_of(scorer.score(request["completion"], request["row"]))
    results = list(scorer.score_group(request["completions"], request["row"]))
    if len(results) != len(request["completions"]):
        return {
            "unscorable": f"EXCEPTION: {len(results)} scores for {len(request['completions'])} completions"
        }
    return {"group": [_said_of(result) for result in results]}


def _said_of(result: object) -> dict[str, Any]:
    if isinstance(result, Unscorable):
        return {"unscorable": result.reason[:_REASON_CHARACTERS]}
    if not isinstance(result, Scored) or not math.isfinite(result.value):
        return {"unscorable": f"NOT_A_NUMBER: the scorer gave {result!r:.80}"}
    if len(result.parts) > _MOST_PARTS:
        return {
            "unscorable": f"TOO_LARGE: the scorer gave {len(result.parts)} parts; at most {_MOST_PARTS} are kept"
        }
    said = {
        "value": float(result.value),
        "parts": {str(k): float(v) for k, v in result.parts.items()},
    }
    return said if result.repair is None else said | {"repair": _repair(result.repair)}


def _repair(repair: Repair) -> dict[str, Any]:
    """One character too many is enough for the parent to leave it out; all of it might not fit through the pipe."""
    return asdict(repair) | {"text": repair.text[: MOST_REPAIR + 1]}


def _said(error: BaseException) -> str:
    try:
        return f"EXCEPTION: {type(error).__name__}: {error}"[:_REASON_CHARACTERS]
    except BaseException:  # its text is the scorer's code, too
        return "EXCEPTION: an error that cannot be shown"


def confine(keep: Confinement, reply: int, folder: str) -> None:
    """Cut this process off, for good: session, files, limits, user, paths, system calls. Raises OSError if a part fails."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    _close_all_but(sorted({reply, keep.reading or reply}))
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    limits.apply(keep.limits, keep.others)
    network, processes = keep.limits.network, keep.limits.processes > 0
    # Before the user changes: what is named here may lie where that user cannot go.
    if keep.reading is not None:
        landlock.restrict(keep.reading)
        os.close(keep.reading)
        landlock.restrict_writing((folder, "/dev/null"), network=network)
    if keep.user is not None:
        os.setgroups([])
        os.setresgid(keep.user, keep.user, keep.user)
        os.setresuid(keep.user, keep.user, keep.user)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of user clears it
    if os.getppid() != keep.parent:  # it died before the kernel knew
        os._exit(1)
    if keep.filtered:
        seccomp.apply(network=network, processes=processes, signals=keep.signals, modes=keep.modes)


def _close_all_but(kept: Sequence[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(null, handle)
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65_536)
    first = 3
    for handle in kept:
        os.closerange(first, handle)
        first = handle + 1
    os.closerange(first, most)
