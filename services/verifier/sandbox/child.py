"""The warm child of one scorer: imports it once, then forks a confined process for every score.

`python -I -m services.verifier.sandbox.child`, frames on stdin and stdout. What a scorer changes in memory ends with its
process, so no completion can reach the score of another. Only this file's code ever runs in the warm process, beside
the import of the scorer, which is its owner's code and not the model's.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import GroupScorer, Scorer
from services.verifier.filter.user_function import UserFunction, UserGroupFunction
from services.verifier.sandbox import attempt, frames, kernel, limits, reach

_REAP_S = 2.0


def main() -> None:
    """Serves one parent until it closes the pipe."""
    requests, replies = _private_channel()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # its memory is not the attempts' to read where both have one user
    opening = frames.read(requests)
    if opening is None:
        return
    try:
        scorer = _scorer(opening)
    except BaseException as error:
        # Importing the user's module runs the user's code: whatever it raises is named to the parent.
        said = str(error) if isinstance(error, InvalidInput) else f"{type(error).__name__}: {error}"
        frames.write(replies, {"refused": said})
        return
    keep = _confinement(opening)
    frames.write(replies, {"version": scorer.version, "drops_user": keep.drop_user})
    while (request := frames.read(requests)) is not None:
        frames.write(replies, _attempted(scorer, request, keep))


def _private_channel() -> tuple[int, int]:
    """Moves the channel away from stdin and stdout, which print() and input() would touch."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    return requests, replies


def _scorer(opening: dict[str, Any]) -> Scorer | GroupScorer:
    sys.path[:0] = [p for p in opening["path"] if p not in sys.path]
    found = registry.build("filter", opening["name"], opening["settings"])
    if hasattr(found, "score_group" if opening.get("group") else "score"):
        return found  # type: ignore[no-any-return]
    made = (UserGroupFunction if opening.get("group") else UserFunction)(found, opening["name"])
    if (row := opening.get("row")) is not None:
        made.check(row)
    return made


def _confinement(opening: dict[str, Any]) -> attempt.Confinement:
    given = {**opening["limits"], "readable": tuple(opening["limits"]["readable"])}
    allowed = limits.Limits(**given)
    readable = _readable(allowed)
    drop = os.geteuid() == 0 and reach.make_reachable(readable)
    user = attempt.NOBODY if drop else os.getuid()
    return attempt.Confinement(allowed, limits.threads_of(user), drop, readable, os.getpid())


def _readable(allowed: limits.Limits) -> tuple[str, ...]:
    candidates = [sys.base_prefix, sys.prefix, *sys.path, *allowed.readable]
    return tuple(dict.fromkeys(p for p in candidates if p and Path(p).exists()))


def _attempted(scorer: Scorer | GroupScorer, request: dict[str, Any], keep: attempt.Confinement) -> dict[str, Any]:
    warm = getattr(scorer, "warm", None)
    with contextlib.suppress(Exception):  # the attempt meets the same trouble, and reports it
        if warm is not None:
            warm(request["row"])
    folder = tempfile.mkdtemp(prefix="score-", dir=os.getcwd())
    if keep.drop_user:
        os.chown(folder, attempt.NOBODY, attempt.NOBODY)
    try:
        return _forked(scorer, request, keep, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _forked(scorer: Scorer | GroupScorer, request: dict[str, Any], keep: attempt.Confinement, folder: str) -> dict[str, Any]:
    reply, inner = os.pipe()
    process = os.fork()
    if process == 0:
        attempt.run(scorer, request, inner, keep, folder)
    os.close(inner)
    try:
        message = _answer(reply, time.monotonic() + keep.limits.deadline_s)
    finally:
        os.close(reply)
        status = _end(process)
    if message is not None:
        return message
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return {"timeout": True}
    how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
    return {"died": how}


def _answer(reply: int, deadline: float) -> dict[str, Any] | None:
    """The attempt's frame, {"timeout"} at the deadline, None where it ended without a whole one."""
    data = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([reply], [], [], left)[0]:
            break
        part = os.read(reply, 1 << 16)
        data += part
        size = frames.HEADER.unpack(data[:4])[0] if len(data) >= 4 else None
        if not part or (size is not None and size > 1 << 20):
            return None
        if size is not None and len(data) >= 4 + size:
            return _parsed(data[4 : 4 + size])
    return {"timeout": True}


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        return frames.parse(body)
    except InvalidInput:
        return None


def _end(process: int) -> int:
    """Kills the attempt and everything that it started; its status."""
    status = 0
    deadline = time.monotonic() + _REAP_S
    while time.monotonic() < deadline:
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            ended, how = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        status = how if ended == process else status
    return status


def _children() -> list[int]:
    return [int(p) for p in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _main() -> NoReturn:
    with contextlib.suppress(BrokenPipeError):
        main()
    sys.exit(0)


if __name__ == "__main__":
    _main()
