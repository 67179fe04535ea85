"""Steps of users' classes, in the confined children of the verifier's pool."""

import base64
from collections.abc import Awaitable, Callable
from typing import Any

from banyan.environments.hosting import HostedResult, HostedTask
from banyan.environments.observation import ToolOutcome
from banyan.environments.outcomes import TOOL_OUTCOMES
from banyan.errors import InvalidInput, TemporaryError
from banyan.plugins.filter import MOST_REWARD
from banyan.reasons import Reason
from services.verifier.environments.ports import Begin
from services.verifier.sandbox.ends import End
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec

_MOST_ANCHOR = 256  # bytes: what is longer a child sends as a digest
_FAILURES = (ToolOutcome.FAILED, ToolOutcome.MALFORMED, ToolOutcome.MEMORY)


class Hosts:
    """Does steps, each in a process forked for it from a child that has imported the class.

    pool: the children.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def do(self, task: HostedTask, begin: Begin | None = None) -> HostedResult:
        """Do a step; what the action causes is a result.

        begin: called when a child is ready, for the key of a step that changes something outside.
            Such a step is done once.

        Raises InvalidInput if the class cannot be loaded or breaks its form, TemporaryError where
        the step was lost by no fault of the action.
        """
        request = {
            "row": dict(task.row),
            "seed": task.seed,
            "past": task.past,
            "snapshot": None if task.snapshot is None else base64.b64encode(task.snapshot).decode(),
            "turn": task.turn,
            "action": task.action,
        }
        answer = await self._pool.ask(_spec(task), request, begin=_keyed(begin) if begin else None)
        return _ended(task, answer) if isinstance(answer, End) else _result(task, answer)


def _keyed(begin: Begin) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def added() -> dict[str, Any]:
        return {"key": await begin()}

    return added


def _spec(task: HostedTask) -> ScorerSpec:
    return ScorerSpec(
        task.name,
        task.settings,
        withheld=task.hosting.withheld,
        readable=task.hosting.readable,
        environment=True,
        deterministic=task.hosting.deterministic,
        python=task.hosting.python,
        deadline_s=task.hosting.seconds,
        memory_mb=task.hosting.memory_mb,
        concurrency=task.hosting.concurrency,
        network=task.hosting.network,
        secrets=task.hosting.secrets,
        external=task.hosting.external,
        processes=task.hosting.processes,
    )


def _result(task: HostedTask, answer: dict[str, Any]) -> HostedResult:
    """Return what a child's answer says; any code of the class may have written it."""
    if "fault" in answer:
        raise InvalidInput(str(answer["fault"]))
    try:
        return _read(task, answer)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"environment {task.name} gave no observation but {str(answer)[:200]}: {error!r}"
        ) from None


def _read(task: HostedTask, answer: dict[str, Any]) -> HostedResult:
    if "diverged" in answer:
        return HostedResult(ToolOutcome.FAILED, diverged=int(answer["diverged"]))
    if "changed" in answer:
        return HostedResult(ToolOutcome.FAILED, changed=str(answer["changed"]))
    if "external" in answer:
        return HostedResult(ToolOutcome.OK, external=str(answer["external"]))
    if "failed" in answer:
        return HostedResult(_failure(answer["outcome"]), str(answer["failed"]))
    if "begun" in answer and task.action is None:
        return HostedResult(ToolOutcome.OK, str(answer["begun"]))
    snapshot, reward = answer["snapshot"], float(answer["reward"])
    if not abs(reward) <= MOST_REWARD:  # nor NaN
        raise ValueError(f"reward {reward}")
    anchor = bytes.fromhex(answer["anchor"])
    if len(anchor) > _MOST_ANCHOR:
        raise ValueError(f"an anchor of {len(anchor)} bytes")
    return HostedResult(
        ToolOutcome.OK,
        text=str(answer["text"]),
        reward=reward,
        done=bool(answer["done"]),
        anchor=anchor,
        unchanged=answer["effect"] != "state",
        snapshot=None if snapshot is None else base64.b64decode(snapshot),
    )


def _failure(outcome: Any) -> ToolOutcome:
    if outcome not in _FAILURES:
        raise ValueError(f"outcome {outcome!r:.40}")
    return ToolOutcome(outcome)


def _ended(task: HostedTask, end: End) -> HostedResult:
    """Return the end of a step without an answer, if it is its own doing.

    Raises TemporaryError if it is not.
    """
    if not end.cause.is_programs:
        message = f"environment {task.name}: {end.reason}"
        raise TemporaryError(message, reason=Reason.CHILD_DIED)
    return HostedResult(TOOL_OUTCOMES[end.cause])
