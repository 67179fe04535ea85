"""Steps of an environment on request of a person: no model, no store, the verifier's own code."""

import os
from collections.abc import AsyncIterator, Sequence

from banyan import registry
from banyan.draws import key as draw_key
from banyan.environments.cut import cut
from banyan.environments.observation import ToolOutcome
from banyan.errors import InvalidInput
from banyan.plugins import Row
from banyan.plugins.environment import Answer
from banyan.recipe import Environment
from services.chassis.process import settings as settings_reader
from services.verifier.environments.hosts import Hosts
from services.verifier.environments.runner import Runner
from services.verifier.environments.stepping import Stepper
from services.verifier.environments.unanswerable import Unanswerable
from services.verifier.jail.chosen_sessions import ChosenSessions
from services.verifier.sandbox.pool import Pool
from services.verifier.settings import Settings


async def answers(
    part: Environment, row: Row, seed: int, actions: Sequence[str]
) -> AsyncIterator[Answer]:
    """Yield the answers to the actions of one episode, as paths get them, until it is over.

    Raises InvalidInput for an action that gets none, as one that would change something outside.
    """
    settings = settings_reader.read(Settings)
    pool = Pool(settings.limits, width=1)
    sessions = ChosenSessions(settings.state, os.urandom(32))
    stepper = Stepper(Runner(sessions, Hosts(pool)))
    try:
        environment = registry.environment(part.name, part.settings, part.hosting)
        state = environment.reset(row, draw_key(seed, "environment"))
        for number, action in enumerate(actions, 1):
            try:
                answer = await stepper.step(environment, state, action, b"")
            except Unanswerable as error:
                raise InvalidInput(f"call {number} gets no answer: {error}") from None
            state = answer.state
            yield answer
            if answer.done:
                return
    finally:
        await sessions.close()
        await pool.close()


def shown(part: Environment, answer: Answer) -> str:
    """Return the text of an answer as a path gets it, and what else it is."""
    notes = [f"outcome {answer.outcome.name}"] if answer.outcome is not ToolOutcome.OK else []
    notes += [f"reward {answer.reward:g}"] if answer.reward else []
    notes += ["the episode is over"] if answer.done else []
    text = cut(answer.text, part.answer_chars)
    return f"{text}\n    ({', '.join(notes)})" if notes else text
