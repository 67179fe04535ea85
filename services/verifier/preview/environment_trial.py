"""Trial of an environment of the user's before a run begins: an episode, and two empty actions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from banyan import registry
from banyan.environments.hosted import Hosted
from banyan.environments.hosting import HostedTask, Hosting
from banyan.environments.observation import ToolOutcome
from banyan.errors import InvalidInput, TemporaryError
from banyan.plugins.environment import Answer
from services.chassis.process import settings as settings_reader
from services.verifier.environments.hosts import Hosts
from services.verifier.environments.runner import Runner
from services.verifier.environments.stepping import Stepper
from services.verifier.environments.unanswerable import Unanswerable
from services.verifier.sandbox.pool import Pool
from services.verifier.settings import Settings


@dataclass(frozen=True, slots=True)
class Trial:
    """Outcome of a trial.

    about: what it says about itself; empty for nothing
    answer: its answer to an empty action; None if no step was taken
    """

    about: str
    answer: Answer | None


async def tried(
    name: str,
    settings: Mapping[str, Any],
    hosting: Hosting,
    row: Mapping[str, Any],
    turns: int = 2,
) -> Trial:
    """Begin an episode of an environment in a child, and take two steps with empty actions.

    Before the second one a class without snapshots repeats the first. What a step raises, and how
    it ends, is an answer.

    turns: answers that a path may have; with 1 there is no second step, and with 0 no first one

    Raises InvalidInput if the episode does not begin, a step breaks the form of a class or has no
    answer in time, or a repeated one is answered otherwise.
    """
    environment = registry.environment(name, settings, hosting)
    _ = environment.version  # its file must be found here, too
    pool = Pool(settings_reader.read(Settings).limits, width=1)
    try:
        hosts = Hosts(pool)
        about = await _begun(hosts, environment, row)
        stepper = Stepper(Runner(None, hosts))
        return Trial(about, await _stepped(stepper, environment, row, turns) if turns else None)
    finally:
        await pool.close()


async def _begun(hosts: Hosts, environment: Hosted, row: Mapping[str, Any]) -> str:
    hosting = environment.hosting
    head = f"environment {environment.name!r} cannot begin an episode"
    try:
        result = await hosts.do(
            HostedTask(environment.name, environment.settings, hosting, row, seed=0)
        )
    except TemporaryError as error:
        raise InvalidInput(f"{head}: {error}") from None
    if result.outcome is not ToolOutcome.OK:
        raise InvalidInput(
            f"{head}: {result.outcome.name} within {hosting.seconds:g} s and {hosting.memory_mb}"
            " MB; environment.seconds and environment.memory_mb allow more"
        )
    return result.text


async def _stepped(
    stepper: Stepper, environment: Hosted, row: Mapping[str, Any], turns: int
) -> Answer:
    """Return the answer to the first of two steps."""
    first = await _step(stepper, environment, environment.reset(row, 0))
    if turns > 1 and first.outcome is ToolOutcome.OK and not first.done:
        await _step(stepper, environment, first.state)
    return first


async def _step(stepper: Stepper, environment: Hosted, state: bytes) -> Answer:
    try:
        return await stepper.step(environment, state, "", b"")
    except TemporaryError as error:
        raise InvalidInput(
            f"environment {environment.name!r} gives an empty action no answer: {error};"
            f" environment.seconds is {environment.hosting.seconds:g}"
        ) from None
    except Unanswerable as error:
        raise InvalidInput(str(error)) from None
