"""An environment of the user's own, as a function of bytes.

A state is JSON: the row, the seed, and the way to it. That is a snapshot of the class's own or,
for a class without one, the actions so far. So it is small, and the same place in any child.
"""

import base64
import hashlib
import importlib.util
import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from banyan.digest import canonical
from banyan.environments.hosting import HostedResult, HostedTask, Hosting, Intent
from banyan.environments.observation import Effect, ToolOutcome
from banyan.environments.observed import text_digest
from banyan.environments.outcomes import WORDS
from banyan.errors import InvalidInput, Refused
from banyan.plugins.environment import HOSTED, Answer
from banyan.plugins.filter import Row
from banyan.reasons import Reason

_WORDS = {**WORDS, ToolOutcome.CRASHED: "error: the environment crashed"}
_ENDED = "error: the environment ended"
_MOST_ROW = 24 << 10  # bytes: with a snapshot of 28 KiB in base64, a state has at most 64 KiB


@dataclass(frozen=True)
class Hosted:
    """Answers with what the user's class says in a child of the verifier.

    name: module:class
    settings: keywords of the class
    hosting: where it runs
    modules: modules of the user's that it calls, beside that of the class

    Attributes:
    deterministic: true here; the class is asked where it is loaded.
    """

    name: str
    settings: Mapping[str, Any]
    hosting: Hosting
    modules: tuple[str, ...] = ()
    deterministic: ClassVar[bool] = True

    @property
    def end(self) -> str:
        """The mark that ends an action."""
        return self.hosting.end

    @cached_property
    def version(self) -> str:
        """Digest of the files of class and tools, so that lineage tells their states apart.

        Raises InvalidInput if a file is not found here.
        """
        own = HOSTED.get(self.name, self.name).partition(":")[0]
        files = [self._file(module).read_bytes() for module in (own, *self.modules)]
        return hashlib.blake2b(b"".join(files), digest_size=6).hexdigest()

    def _file(self, module: str) -> Path:
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None
        if found is None or found.origin is None:
            raise InvalidInput(
                f"environment {self.name!r}: there is no module {module!r}; its file is looked"
                " for beside the recipe, here and on PYTHONPATH"
            )
        return Path(found.origin)

    def reset(self, row: Row, seed: int) -> bytes:
        """Return the state before the first action; the class itself is not asked.

        Raises InvalidInput for a row that leaves a state no room.
        """
        state = canonical({"row": dict(row), "seed": seed, "past": []})
        if len(state) > _MOST_ROW:
            raise InvalidInput(
                f"a row has {len(state)} bytes; environment {self.name} takes at most {_MOST_ROW},"
                " since states hold their row"
            )
        return state

    def turn(self, state: bytes, action: str) -> Generator[HostedTask | Intent, Any, Answer]:
        """Yield the step, for a HostedResult; return the answer to it.

        A step that would change something outside has not done so; it is yielded again as an
        Intent. It leaves the state as it was: that is all that can be made again.

        Raises Refused with ENVIRONMENT_DIVERGED if actions before it were answered otherwise.
        """
        way = json.loads(state)
        before, mark, _ = action.rpartition(self.end)
        said = before if mark else action  # what stands behind the mark is not read
        snapshot = way.get("snapshot")
        task = HostedTask(
            self.name,
            self.settings,
            self.hosting,
            row=way["row"],
            seed=way["seed"],
            past=tuple((one, digest) for one, digest in way["past"]),
            snapshot=None if snapshot is None else base64.b64decode(snapshot),
            turn=_turn(way),
            action=said,
        )
        result: HostedResult = yield task
        if not result.external:
            return self._checked(state, way, said, result)
        if result.external not in self.hosting.external:
            raise InvalidInput(
                f"tool {result.external} changes something outside, and environment.external does"
                f" not name it; it names {', '.join(self.hosting.external) or 'none'}"
            )
        result = yield Intent(result.external, task)
        answer = self._checked(state, way, said, result)
        return replace(answer, state=state, effect=Effect.EXTERNAL)

    def _checked(
        self, state: bytes, way: dict[str, Any], said: str, result: HostedResult
    ) -> Answer:
        if result.changed:
            raise Refused(result.changed, Reason.ENVIRONMENT_DIVERGED)
        if result.diverged:
            raise Refused(
                f"environment {self.name} answered action {result.diverged} of a path otherwise"
                " when it was repeated; equal rows, seeds and actions must have equal answers",
                Reason.ENVIRONMENT_DIVERGED,
            )
        return self._answer(state, way, said, result)

    def _answer(self, state: bytes, way: dict[str, Any], said: str, result: HostedResult) -> Answer:
        if result.outcome is not ToolOutcome.OK:
            text = _WORDS.get(result.outcome) or result.text or _ENDED
            return Answer(text, state, outcome=result.outcome)  # its place stays
        if result.unchanged:
            return Answer(result.text, state, result.reward, done=result.done, anchor=result.anchor)
        after = {"row": way["row"], "seed": way["seed"], "past": way["past"]}
        if result.snapshot is not None:
            snapshot = base64.b64encode(result.snapshot).decode()
            after |= {"snapshot": snapshot, "turn": _turn(way) + 1, "past": []}
        else:
            after["past"] = [*way["past"], [said, text_digest(result.text).hex()]]
        return Answer(
            result.text,
            canonical(after),
            reward=result.reward,
            done=result.done,
            effect=Effect.STATE,
            anchor=result.anchor,
        )


def _turn(way: Mapping[str, Any]) -> int:
    """Return how many steps led to a state; a snapshot stands in for those before it."""
    return int(way.get("turn", 0)) + len(way["past"])
