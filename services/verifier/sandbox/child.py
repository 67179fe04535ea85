"""The warm child of one scorer: imports it once, then forks a confined process for every score.

`banyan.runtime.launch` starts it in an isolated interpreter, with frames on stdin and stdout.
Changes in memory end with the process of a score, so no completion can reach the score of another.
The warm process runs only the code of this file and the import of the scorer, which is its owner's
code and not the model's.
"""

import contextlib
import gc
import os
import sys
import tempfile
from numbers import Real
from typing import Any, NoReturn

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins.filter import MOST_REWARD
from banyan.programs.run import Outcome
from services.verifier.filter.user_function import UserFunction, UserGroupFunction
from services.verifier.hosted.user_class import UserEnvironment
from services.verifier.sandbox import attempt, causes, frames, guard, limits
from services.verifier.sandbox.confinement import (
    folders,
    isolation,
    kernel,
    landlock,
    priority,
    processes,
    reachable,
    readable,
    trial,
)
from services.verifier.sandbox.reply import await_frame

_REAP_S = 2.0
# Entries of a score's folder that are removed between two scores; with more the child is replaced.
_MAX_ENTRIES = 10_000


def main(*, isolated: bool) -> None:
    """Serve one parent until it closes the pipe.

    isolated: this is the first process of a process namespace.
    """
    requests, replies = _private_channel()
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    # Attempts that run as the same user must not read this process's memory.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    frames.write(replies, {"started": True})  # all imports of our own have been made
    opening = frames.read(requests)
    if opening is None:
        return
    try:
        forks = Forks(opening, limits.parsed(opening["limits"]), isolated)
    except BaseException as error:
        # Importing the user's module runs the user's code: any error of it goes to the parent.
        own = isinstance(error, InvalidInput)
        reason = str(error) if own else f"{type(error).__name__}: {error}"
        frames.write(replies, {"refused": reason})
        return
    # A collection in a fork would visit, and so copy, all that the imports made.
    gc.collect()
    gc.freeze()
    frames.write(replies, forks.ready())
    while (request := frames.read(requests)) is not None:
        frames.write(replies, forks.attempted(request))


def _private_channel() -> tuple[int, int]:
    """Move the channel away from stdin and stdout, which print() and input() would use."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    return requests, replies


def _scorer(opening: dict[str, Any]) -> Any:
    """Return the scorer that an opening message names; a plain function is wrapped."""
    sys.path[:0] = [path for path in opening["path"] if path not in sys.path]
    os.environ.update(opening.get("secrets", {}))
    if opening["environment"]:
        kind = registry.find("environment", opening["name"])
        made = UserEnvironment.made(kind, opening["settings"], opening["name"], opening["external"])
        if opening["deterministic"]:
            made.check_deterministic()
        return made
    scorer = registry.build("filter", opening["name"], opening["settings"])
    is_group = opening.get("group")
    if hasattr(scorer, "score_group" if is_group else "score"):
        return scorer
    wrapper = UserGroupFunction if is_group else UserFunction
    wrapped = wrapper(scorer, opening["name"])
    if (row := opening.get("row")) is not None:
        wrapped.check(row)
    return wrapped


def _wrong(scorer: object) -> float:
    """Return the value that the scorer gives to wrong answers; 0 if it does not say."""
    value = getattr(scorer, "wrong", 0.0)
    if isinstance(value, Real) and abs(float(value)) <= MOST_REWARD:
        return float(value)
    raise InvalidInput(f"its `wrong` must be a number within ±{MOST_REWARD:g}, got {value!r:.60}")


class Forks:
    """An imported scorer, and a confined fork of this process for each score."""

    def __init__(self, opening: dict[str, Any], allowed: limits.Limits, isolated: bool) -> None:
        self._allowed, self._isolated = allowed, isolated
        missing = trial.missing()
        self._scorer = _scorer(opening)
        self._wrong = _wrong(self._scorer)
        self._readable = readable.of(
            _modules(self._scorer, opening["name"]),
            allowed.readable,
            allowed.withheld,
            network=allowed.network,
        )
        self._user = None
        if os.geteuid() == 0:
            if reachable.make_reachable((*self._readable.roots, os.getcwd())):
                self._user = isolation.own_user()
            else:
                missing.append("another user, for whom the interpreter's folders can be reached")
        if missing and not allowed.unconfined:
            raise InvalidInput(trial.refusal(missing))
        self._notices = list(self._readable.notices)
        self._notices += [f"scores run without {name}, as was allowed" for name in missing]
        paths = self._readable
        self._reading = landlock.reading(paths.paths, paths.listable, os.getcwd())
        self._filtered = trial.SECCOMP not in missing
        has_own_user = self._user not in (None, isolation.NOBODY)
        self._apart = has_own_user or (isolated and self._user is None)

    def ready(self) -> dict[str, Any]:
        """Return the first message to the parent."""
        return {
            "version": str(self._scorer.version),
            "wrong": self._wrong,
            "apart": self._apart,
            "notices": self._notices,
        }

    def attempted(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        With {"spent"} the score left more behind than could be removed: this child is to be ended.
        """
        warm = getattr(self._scorer, "warm", None)
        with contextlib.suppress(Exception):  # the attempt meets the same error, and reports it
            if warm is not None:
                warm(request["row"])
        folder = tempfile.mkdtemp(prefix="score-", dir=os.getcwd())
        if self._user is not None:
            os.chown(folder, self._user, self._user)
        answer = self._forked(request, folder)
        return answer if folders.remove(folder, _MAX_ENTRIES) else answer | {"spent": True}

    def _confinement(self) -> attempt.Confinement:
        if self._user is not None:
            others = 0 if self._apart else limits.threads_of(self._user)
        elif self._apart:
            others = 1 + len(os.listdir("/proc/self/task"))  # the guard, and this process
        else:
            others = limits.threads_of(os.getuid())
        signals = self._isolated or self._apart or landlock.version() >= landlock.SIGNALS_SINCE
        return attempt.Confinement(
            limits=self._allowed,
            others=others,
            user=self._user,
            reading=self._reading,
            filtered=self._filtered,
            signals=signals,
            modes=self._user not in (None, isolation.NOBODY),
            parent=os.getpid(),
        )

    def _forked(self, request: dict[str, Any], folder: str) -> dict[str, Any]:
        confinement = self._confinement()
        reply, inner = os.pipe()
        process = os.fork()
        if process == 0:
            attempt.run(self._scorer, request, inner, confinement, folder)
        os.close(inner)
        try:
            seen = await_frame(reply, confinement.limits.deadline_s, confinement.limits.rounds)
        finally:
            os.close(reply)
            ended = processes.end(process, alone=self._isolated, within_s=_REAP_S)
        answer = _answer_of(seen, ended, self._allowed)
        return answer if ended.clean else answer | {"spent": True}


def _answer_of(
    seen: dict[str, Any] | Outcome | None, ended: processes.Ended, allowed: limits.Limits
) -> dict[str, Any]:
    """Return the attempt's own answer, or how it ended without one."""
    said: dict[str, Any] = {}
    if isinstance(seen, dict):
        if "ended" not in seen:
            return seen
        said = {key: seen[key] for key in ("printed",) if key in seen}
        seen = causes.parsed(seen["ended"])
    number = causes.signal_of(ended) if seen is None else 0
    how = f"signal {number}" if number else ""
    return {"ended": causes.of(seen, ended, allowed), "how": how, **said}


def _modules(scorer: Any, name: str) -> tuple[str, ...]:
    if isinstance(scorer, UserEnvironment) and ":" not in name:
        return tuple(getattr(scorer.environment, "modules", ()))  # our own code is known
    return (name.partition(":")[0] if ":" in name else type(scorer).__module__,)


def _main() -> NoReturn:
    niceness = priority.below(os.getppid())
    isolated = guard.protect()
    priority.give_way(niceness)
    with contextlib.suppress(BrokenPipeError):
        main(isolated=isolated)
    sys.exit(0)


if __name__ == "__main__":
    _main()
