"""A run's loggers as the learner sees them: each step when it is trained, each evaluation when the store says it is over."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from banyan import loggers
from banyan.errors import BanyanError
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2
from services.learner.loggers.feed import Feeds

log = logging.getLogger(__name__)

LOOK_S = 10.0  # between looks at evaluations


class Evaluations(Protocol):
    """Who knows how evaluations stand."""

    async def evaluations(self) -> tuple[int, list[runstore_service_pb2.EvalProgress]]:
        """The newest step, and how the run's evaluations stand."""
        ...


class Logs:
    """Lives in the learner's event loop; without loggers it does nothing."""

    def __init__(self, run_id: str, recipe: Recipe, folder: Path, store: Evaluations) -> None:
        built = loggers.built(recipe)
        self._feeds = Feeds(run_id, recipe.model_dump(mode="json"), built, folder / "loggers")
        self._store, self._told = store, set[str]()
        self._follower = asyncio.create_task(self._follow()) if built else None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes a step's metrics; returns at once."""
        self._feeds.step(step, metrics)

    async def close(self) -> None:
        """Takes what was measured last, and gives loggers a while to write. What fails in it is logged, not raised: it must
        not hide why the learner ends."""
        if self._follower is None:
            return
        self._follower.cancel()
        (ended,) = await asyncio.gather(self._follower, return_exceptions=True)
        looked, closed = [
            (await asyncio.gather(part, return_exceptions=True))[0] for part in self._last()
        ]
        for error in (ended, looked, closed):
            if isinstance(error, Exception):
                log.error("loggers: %s: %s", type(error).__name__, error, exc_info=error)

    def _last(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._look()
        yield asyncio.to_thread(self._feeds.close)

    async def _follow(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        try:
            newest, evaluations = await self._store.evaluations()
        except BanyanError as error:  # it is asked again
            log.debug("evaluations are not known: %s", error)
            return
        for message in evaluations:
            if (
                message.scored
                and message.done >= message.groups
                and message.label not in self._told
            ):
                self._told.add(message.label)
                self._feeds.evaluation(message.label, *measured(message, newest))


def measured(
    message: runstore_service_pb2.EvalProgress, newest: int
) -> tuple[int, dict[str, float]]:
    """The step whose policy was measured, and what was found: before-greedy, step-20-sampled, after-greedy."""
    when, _, kind = message.label.rpartition("-")
    known = {"before": 0, "after": newest}
    step = known[when] if when in known else int(when.removeprefix("step-"))
    found = {
        "reward": message.reward_sum / message.scored,
        "right": message.correct / message.scored,
    }
    return step, {
        f"eval_{kind}_{name}": value
        for name, value in (found | {"answers": float(message.scored)}).items()
    }
