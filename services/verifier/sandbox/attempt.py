"""A score in a process forked for it: confine, run the scorer, answer with one frame, exit."""

import io
import math
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from banyan.errors import InvalidInput, users_place
from banyan.plugins import GroupScorer, Repair, Scored, Scorer, Unscorable
from banyan.plugins.filter import MOST_REPAIR
from services.verifier.filter.call import call
from services.verifier.hosted.user_class import UserEnvironment
from services.verifier.sandbox import causes, frames, limits
from services.verifier.sandbox.confinement import kernel, landlock, priority, seccomp

_REASON_CHARACTERS = 500
_MAX_PARTS = 64  # the parent checks it again; more might not fit through the pipe
_PRINTED_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Confinement:
    """The confinement of an attempt.

    others: threads of its user beside its own.
    user: id of the user that it becomes; None for the verifier's own.
    reading: Landlock domain of readable files; None without Landlock, if the recipe allowed that.
    filtered: system calls are filtered; False without filters, if the recipe allowed that.
    signals: it may send signals, because they reach nothing outside.
    modes: it may change modes and times of files, because its user owns no others than its own.
    parent: process that forks attempts; none outlives it.
    """

    limits: limits.Limits
    others: int
    user: int | None
    reading: int | None
    filtered: bool
    signals: bool
    modes: bool
    parent: int


class Printed(io.RawIOBase):
    """The target of Python's stdout and stderr: keeps their first bytes and drops the others."""

    def __init__(self, kept: bytearray) -> None:
        super().__init__()
        self._kept = kept

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of /dev/null, for code that passes it on to another process."""
        return 1

    def write(self, data: Any) -> int:
        """Accept all of the data, keep its beginning."""
        written = bytes(data)
        self._kept += written[: max(0, _PRINTED_BYTES - len(self._kept))]
        return len(written)


def _stream(kept: bytearray) -> io.TextIOWrapper:
    raw: Any = Printed(kept)
    return io.TextIOWrapper(raw, "utf-8", "replace", write_through=True)


def run(
    scorer: Scorer | GroupScorer,
    request: Mapping[str, Any],
    reply: int,
    confinement: Confinement,
    folder: str,
) -> None:
    """Score a request, write the answer to `reply` and end the process."""
    printed = bytearray()
    try:
        try:
            confine(confinement, reply, folder)
            sys.stdout, sys.stderr = _stream(printed), _stream(printed)
            message = outcome(scorer, request)
        except BaseException as error:
            # The scorer may raise anything, SystemExit included: all of it is its answer.
            cause = causes.claimed(error)
            message = {"ended": cause} if cause else {"unscorable": _reason(error)}
        said = {"printed": printed.decode("utf-8", "replace")} if printed else {}
        frames.send(reply, _frame(message, said))
    finally:
        os._exit(0)  # in any case: the code that follows is the warm child's


def outcome(scorer: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer as a message: on one completion, on all of a group, or to an action."""
    if isinstance(scorer, UserEnvironment):
        return scorer.did(request)
    result = call(scorer, request)
    if "completions" not in request:
        return _message(result)
    results = list(result)
    count = len(request["completions"])
    if len(results) != count:
        return {"unscorable": f"EXCEPTION: {len(results)} scores for {count} completions"}
    return {"group": [_message(result) for result in results]}


def _message(result: object) -> dict[str, Any]:
    if isinstance(result, Unscorable):
        return {"unscorable": result.reason[:_REASON_CHARACTERS]}
    if not isinstance(result, Scored) or not math.isfinite(result.value):
        return {"unscorable": f"NOT_A_NUMBER: the scorer gave {result!r:.80}"}
    if len(result.parts) > _MAX_PARTS:
        count = len(result.parts)
        return {
            "unscorable": f"TOO_LARGE: the scorer gave {count} parts; at most {_MAX_PARTS} are kept"
        }
    message: dict[str, Any] = {
        "value": float(result.value),
        "parts": {str(name): float(part) for name, part in result.parts.items()},
    }
    if result.repair is not None:
        message["repair"] = _repair(result.repair)
    return message


def _repair(repair: Repair) -> dict[str, Any]:
    """Return a repair as a message, a long one cut.

    One character above the limit makes the parent leave it out; all of its text might not fit
    through the pipe.
    """
    return asdict(repair) | {"text": repair.text[: MOST_REPAIR + 1]}


def _frame(message: dict[str, Any], said: dict[str, Any]) -> bytes:
    """Return the frame of an answer; one that cannot be sent is the scorer's mistake."""
    try:
        frame = frames.pack(message | said)
    except InvalidInput as error:
        reason = f"EXCEPTION: the scorer's answer cannot be sent: {error}"
    else:
        if len(frame) <= frames.MAX_ANSWER_BYTES:
            return frame
        reason = f"TOO_LARGE: the scorer's answer has {len(frame)} bytes"
    return frames.pack({"unscorable": reason[:_REASON_CHARACTERS], **said})


def _reason(error: BaseException) -> str:
    try:
        place = users_place(error)
        most = _REASON_CHARACTERS - len(place)
        return f"EXCEPTION: {type(error).__name__}: {error}"[:most] + place
    except BaseException:  # the error's text is the scorer's code, too
        return "EXCEPTION: an error that cannot be shown"


def confine(confinement: Confinement, reply: int, folder: str) -> None:
    """Confine this process irrevocably: session, files, limits, user, paths, system calls.

    Raise OSError if a part fails.
    """
    reading, user = confinement.reading, confinement.user
    os.setpgid(0, 0)  # in the session of the child, which gives way to services
    priority.give_way_to_child()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    _close_all_but(sorted({reply, reading or reply}))
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    limits.apply(confinement.limits, confinement.others)
    network, processes = confinement.limits.network, confinement.limits.processes > 0
    # Before the change of user, who may have no access to the paths named here.
    if reading is not None:
        landlock.restrict(reading)
        os.close(reading)
        landlock.restrict_writing((folder, "/dev/null"), network=network)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of user clears it
    if os.getppid() != confinement.parent:  # it died before the request
        os._exit(1)
    if confinement.filtered:
        seccomp.apply(
            network=network,
            processes=processes,
            signals=confinement.signals,
            modes=confinement.modes,
        )


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
