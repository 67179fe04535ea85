"""Metrics of an engine: how many segments it decodes together, what waits, what it holds."""

import time
from collections.abc import Callable

from services.chassis.process import telemetry
from services.rollout.engines.port import EngineStats

EVERY_S = 1.0


class Occupancy:
    """Observes the segments decoded in a step of the model, in the mean over a second of steps.

    A tree has fewer segments to decode at once than independent samples, the nearer to its prompt
    the fewer: what keeps an engine full is many trees at a time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._before = EngineStats()

    @property
    def seen(self) -> EngineStats:
        """The counts of the last look."""
        return self._before

    def look(self, stats: Callable[[], EngineStats]) -> None:
        """Take note of the steps that have ended. stats: asked for once a second."""
        now = self._clock()
        if now - self._since < EVERY_S:
            return
        found, self._since = stats(), now
        steps = found.steps - self._before.steps
        sampled = found.sampled_tokens - self._before.sampled_tokens
        self._before = found
        if steps > 0:
            telemetry.observe("banyan.engine.occupancy", sampled / steps)
        telemetry.level("banyan.engine.running", found.running)
        telemetry.level("banyan.engine.waiting", found.waiting)
        telemetry.level("banyan.engine.kv_tokens", found.kv_tokens)
