"""The user's class as an environment, always in a child process.

    class Corridor:
        def reset(self, row): ...
        def step(self, action): return observation, reward, done

The constructor, and `prepare()` if there is one, run once in the warm child; all else in a process
of its own for each step. `reset` may take a `seed`; what it returns is not read. `step` may return
the five values of Gymnasium. `snapshot() -> bytes` with `restore(bytes)`, called behind
`reset`, spare the steps before. `anchor`, an attribute or a method, names the state for estimators
of steps. `effect = "none"` says that steps change nothing, so that none is repeated.
`deterministic = True` says that equal rows, seeds and actions have equal answers, whatever the time
and the machine's load; deterministic runs refuse a class that does not.
"""

import base64
import inspect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from banyan.digest import blake
from banyan.environments.cut import cut
from banyan.environments.external import NotBegun
from banyan.environments.malformed import Malformed
from banyan.environments.observation import ToolOutcome
from banyan.environments.observed import text_digest
from banyan.environments.servers import ServerChanged, ServerFailed
from banyan.errors import InvalidInput, users_code, users_place, with_kind
from banyan.plugins.filter import MOST_REWARD

_FORM = "step(action) must return (observation: str, reward: float, done: bool)"
_GYMNASIUM = (
    ", as it is Gymnasium's. Name a class of your own that holds the environment: its reset(row,"
    " seed) calls self.env.reset(seed=seed) with what the row says, its step(action) makes the"
    " environment's action of the text and a text of the observation"
)
_MOST_OBSERVED = 1 << 17  # characters; escaped they must fit into a frame
_MOST_SNAPSHOT = 28 << 10  # bytes; with the row, in base64, they must fit into a state
_MOST_ANCHOR = 256
_SHOWN = 500


@dataclass(frozen=True, slots=True)
class UserEnvironment:
    """An object of a class, and its steps.

    environment: the object
    name: module:class, or the registered name
    """

    environment: Any
    name: str
    version: str = ""

    @classmethod
    def made(
        cls, kind: Any, settings: Mapping[str, Any], name: str, external: Sequence[str] = ()
    ) -> "UserEnvironment":
        """Make the object, and prepare it. Raises InvalidInput with what that raised.

        external: names of its tools that may change something outside.
        """
        with users_code(lambda error: f"its constructor raised {_at(error)}", passing=()):
            environment = kind(**settings)
        with users_code(str, passing=(InvalidInput,)):
            _check_methods(environment)
        if external:
            environment.allowed = tuple(external)
        with users_code(lambda error: f"its prepare raised {_at(error)}", passing=()):
            if hasattr(environment, "prepare"):
                environment.prepare()
        return cls(environment, name)

    def check_deterministic(self) -> None:
        """Raise InvalidInput unless the class says that it is deterministic."""
        with users_code(str, passing=()):
            declared = getattr(self.environment, "deterministic", False)
        if declared is not True:
            raise InvalidInput(
                "it does not say that it is deterministic; if equal rows, seeds and actions have"
                " equal answers, write `deterministic = True` into the class, or set"
                " deterministic: false in the recipe"
            )

    def did(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what came of a step.

        Its observation, or {"failed"} by the action's doing, {"diverged"} in its past, {"fault"} of
        the class, {"external"} for a tool that was not called for want of a key, {"changed"} if its
        server is not the frozen one; {"begun"} where only the beginning was asked for.
        """
        try:
            environment = self._begun(request)
            past, seed, turn = request["past"], request["seed"], request["turn"]
            for number, (action, digest) in enumerate(past, 1):
                _draw_anew(seed, turn - len(past) + number - 1)
                if text_digest(self._repeated(environment, action)).hex() != digest:
                    return {"diverged": number}
            _draw_anew(seed, turn)
            if request["action"] is None:
                with _owners("about"):
                    about = environment.about() if hasattr(environment, "about") else ""
                return {"begun": about}
            return self._stepped(environment, request["action"], request.get("key", ""))
        except InvalidInput as fault:
            return {"fault": f"environment {self.name}: {fault}"[:_SHOWN]}

    def _begun(self, request: Mapping[str, Any]) -> Any:
        """Return the object where the past, if any, begins."""
        environment, seed = self.environment, request["seed"]
        random.seed(seed)  # for classes that draw without a generator of their own
        with _owners("reset"):
            begun = environment.reset(request["row"], **_seeded(environment.reset, seed))
        if inspect.isawaitable(begun) or inspect.isgenerator(begun):
            raise InvalidInput("reset is async or a generator, so nothing of it was run")
        _effect(environment)
        if request["snapshot"] is not None:
            with _owners("restore"):
                environment.restore(base64.b64decode(request["snapshot"]))
        return environment

    def _repeated(self, environment: Any, action: str) -> str:
        with _owners(f"step({action!r:.40}), which had an answer before,"):
            return _observed(environment.step(action))[0]

    def _stepped(self, environment: Any, action: str, key: str) -> dict[str, Any]:
        if key:
            environment.key = key
        try:
            with users_code(lambda error: f"error: {_said(error)}", passing=()):
                returned = environment.step(action)
        except InvalidInput as error:
            return self._unobserved(error, error.__cause__, key)
        text, reward, done = _observed(returned)
        with _owners("anchor"):
            anchor = _anchor(environment)
        with _owners("snapshot"):
            snapshot = _snapshot(environment)
        effect = {"effect": "external" if key else _effect(environment)}
        return {"text": text, "reward": reward, "done": done, **effect, **anchor, **snapshot}

    def _unobserved(
        self, error: InvalidInput, cause: BaseException | None, key: str
    ) -> dict[str, Any]:
        match cause:
            case NotBegun() if not key:
                return {"external": cause.tool}
            case ServerChanged():
                return {"changed": f"environment {self.name}: {cause}"[:_SHOWN]}
            case ServerFailed():
                return {"fault": f"environment {self.name}: {cause}"[:_SHOWN]}
        return {"failed": str(error)[:_SHOWN], "outcome": _outcome(cause).value}


def _draw_anew(seed: int, turn: int) -> None:
    """Key what the module random draws in a step by the step's number.

    So branches of a tree have the same luck, whatever their actions drew before, and a class with
    snapshots draws what it would draw without.
    """
    random.seed(f"{seed} {turn}")


def _check_methods(environment: Any) -> None:
    """Raise InvalidInput unless an object has the methods of an environment."""
    name = type(environment).__name__
    for method in ("reset", "step"):
        if not callable(getattr(environment, method, None)):
            raise InvalidInput(
                f"{name} has no method {method}; a class has reset(row) and step(action)"
            )
    try:
        inspect.signature(environment.step).bind("")
    except TypeError:
        signature = inspect.signature(environment.step)
        raise InvalidInput(f"step{signature} cannot be called as step(action)") from None
    pair = {method: hasattr(environment, method) for method in ("snapshot", "restore")}
    if len(set(pair.values())) > 1:
        had, lacked = sorted(pair, key=pair.__getitem__, reverse=True)
        raise InvalidInput(
            f"{name} has {had} but no {lacked}; write both, or neither: then a path's actions are"
            " repeated before each step"
        )


def _seeded(reset: Any, seed: int) -> dict[str, int]:
    """Return the seed for a reset that takes one. Raise InvalidInput for one that takes no row."""
    signature = inspect.signature(reset)
    seeded = {"seed": seed} if "seed" in signature.parameters else {}
    try:
        signature.bind({}, **seeded)
    except TypeError:
        how = _GYMNASIUM if "options" in signature.parameters else ""
        raise InvalidInput(
            f"reset{signature} cannot be called as reset(row) or reset(row, seed){how}"
        ) from None
    return seeded


def _said(error: BaseException) -> str:
    return str(error) if type(error) is Malformed else with_kind(error)


def _at(error: BaseException) -> str:
    return with_kind(error) + users_place(error)


def _outcome(error: BaseException | None) -> ToolOutcome:
    match error:
        case Malformed():
            return ToolOutcome.MALFORMED
        case MemoryError():
            return ToolOutcome.MEMORY
    return ToolOutcome.FAILED


def _owners(part: str) -> Any:
    """Turn what a part of the class raises into InvalidInput that names the part.

    What a server of tools did wrong speaks for itself.
    """

    def message(error: BaseException) -> str:
        of_server = isinstance(error, ServerChanged | ServerFailed)
        return str(error) if of_server else f"{part} raised {_at(error)}"

    return users_code(message, passing=(InvalidInput,))


def _observed(returned: Any) -> tuple[str, float, bool]:
    match tuple(map(_plain, returned)) if isinstance(returned, tuple) else returned:
        case (str() as text, int() | float() as reward, bool() as done):
            pass
        case (str() as text, int() | float() as reward, bool() as ended, bool() as cut_off, dict()):
            done = ended or cut_off
        case _:
            if inspect.isawaitable(returned):
                raise InvalidInput("step is async, so nothing of it was run; write def step")
            raise InvalidInput(f"{_FORM}, got {returned!r:.80}")
    if not abs(reward) <= MOST_REWARD:  # nor NaN
        raise InvalidInput(f"a step's reward is {reward!r:.60}, not within ±{MOST_REWARD:g}")
    return cut(text, _MOST_OBSERVED), float(reward), done


def _effect(environment: Any) -> str:
    effect = getattr(environment, "effect", "state")
    if effect not in ("none", "state"):
        raise InvalidInput(f"effect is {effect!r:.80}; it must be none or state")
    return str(effect)


def _plain(value: Any) -> Any:
    """Return a number of numpy, which Gymnasium's classes give, as Python's own."""
    return value.item() if type(value).__module__ == "numpy" and not value.shape else value


def _anchor(environment: Any) -> dict[str, Any]:
    anchor = getattr(environment, "anchor", b"")
    if callable(anchor):
        anchor = anchor()
    if isinstance(anchor, str):
        anchor = anchor.encode("utf-8", "replace")
    if not isinstance(anchor, bytes):
        raise InvalidInput(f"anchor is {anchor!r:.80}; it must be a text or bytes")
    # One that is long stays a name.
    return {"anchor": (anchor if len(anchor) <= _MOST_ANCHOR else blake(anchor)).hex()}


def _snapshot(environment: Any) -> dict[str, Any]:
    if not hasattr(environment, "snapshot"):
        return {"snapshot": None}
    taken = environment.snapshot()
    if not isinstance(taken, bytes):
        raise InvalidInput(f"snapshot() must return bytes, got {taken!r:.80}")
    if len(taken) > _MOST_SNAPSHOT:
        raise InvalidInput(
            f"snapshot() returned {len(taken)} bytes, and at most {_MOST_SNAPSHOT} can be kept;"
            " keep less, or leave snapshot and restore out"
        )
    return {"snapshot": base64.b64encode(taken).decode()}
