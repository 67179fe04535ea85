"""Steps of environments: an answer to an action, with a state that can be kept."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

from banyan.environments.hosting import Intent
from banyan.environments.observation import ToolOutcome
from banyan.plugins.environment import Answer
from banyan.reasons import Reason
from banyan.text.printable import encodable
from services.verifier.environments.effects import ExternalEffect
from services.verifier.environments.runner import Runner
from services.verifier.environments.unanswerable import Unanswerable, foreign

MOST_STATE = 64 << 10
_TOO_LARGE = f"error: what this left is larger than {MOST_STATE >> 10} KiB; all is as it was before"


class Stepper:
    """Takes steps, whatever kind of environment answers.

    runner: does the runs that environments ask for.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def step(
        self,
        environment: Any,
        state: bytes,
        call: str,
        action: bytes,
        effect: ExternalEffect | None = None,
    ) -> Answer:
        """Return an environment's answer, with a state that can be kept.

        action: name of the action in what is raised.
        effect: begins an effect outside; None where there can be none, as for a step that was made
            before, or by hand.

        Raises TemporaryError where a run in a session failed by no fault of its code, Unanswerable
        where the environment itself raised an error, or would change something outside without an
        effect.
        """
        answer = await self._raw(environment, state, call, action, effect)
        answer = replace(answer, text=encodable(answer.text))  # a message has no half characters
        if len(answer.state) <= MOST_STATE:
            return answer
        outcome = ToolOutcome.MEMORY
        return Answer(_TOO_LARGE, state, outcome=outcome, effect=answer.effect)

    async def _raw(
        self,
        environment: Any,
        state: bytes,
        call: str,
        action: bytes,
        effect: ExternalEffect | None,
    ) -> Answer:
        if not hasattr(environment, "turn"):
            with foreign(environment.name, action):
                answer: Answer = environment.step(state, call)
            return answer
        turn, result = environment.turn(state, call), cast(Any, None)
        while True:
            try:
                with foreign(environment.name, action):
                    task = turn.send(result)
            except StopIteration as end:
                answer = end.value
                return answer
            if isinstance(task, Intent):
                result = await self._outside(environment.name, task, action, effect)
                continue
            with foreign(environment.name, action):
                result = await self._runner.do(environment.name, task)

    async def _outside(
        self, name: str, intent: Intent, action: bytes, effect: ExternalEffect | None
    ) -> Any:
        if effect is None:
            message = (
                f"tool {intent.tool} of environment {name} changes something outside, which a step"
                " that was made before, or is made by hand, does not"
            )
            raise Unanswerable(action, Reason.ENVIRONMENT_DIVERGED, message)
        return await self._runner.do(name, intent.task, partial(effect.begin, intent.tool))
