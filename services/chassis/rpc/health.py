"""Liveness by progress: each loop and thread of a process says until when it will have got on, and health compares.

gRPC's health service has two answers here. The empty name is readiness: whether calls make sense. `liveness` is SERVING
while every pulse is in time; its handler runs on the event loop, so an answer alone shows that the loop turns.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health_pb2

log = logging.getLogger(__name__)

LIVENESS = "liveness"  # the name to ask the health service for; k8s/ has it in its probes


class Pulse:
    """The progress of one loop or thread: what it does, and when that must have ended. Any thread may beat it."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self._clock = name, clock
        self._state = (
            "",
            math.inf,
            math.inf,
        )  # what, within which time, until when; replaced as a whole: threads read it

    def beat(self, doing: str, within_s: float) -> None:
        """Notes progress, and that the next will be within `within_s`: the longest lawful time of what begins now."""
        self._state = (doing, within_s, self._clock() + within_s)

    def rest(self) -> None:
        """Notes that nothing is under way: there is no deadline until the next beat."""
        self._state = ("", math.inf, math.inf)

    def again(self) -> None:
        """Begins the time of what is under way anew: it waits for something that is known to be away. A rest goes on."""
        doing, within_s, _ = self._state
        self.beat(doing, within_s)

    @contextlib.contextmanager
    def during(self, doing: str, within_s: float) -> Iterator[None]:
        """Declares one operation with its deadline; rests when the block ends."""
        self.beat(doing, within_s)
        try:
            yield
        finally:
            self.rest()

    @property
    def late(self) -> str:
        """Description of an overdue operation; empty if there is none."""
        doing, _, due = self._state
        over_s = self._clock() - due
        return f"{self.name}: {doing} is {over_s:.0f} s over its deadline" if over_s > 0 else ""


class Liveness:
    """The pulses of a process."""

    def __init__(self) -> None:
        self._pulses: list[Pulse] = []
        self._told: list[str] = []

    def add(self, *pulses: Pulse) -> None:
        """Takes pulses in; each counts from its first beat on."""
        self._pulses += pulses

    def drop(self, pulse: Pulse) -> None:
        """Forgets a pulse whose loop has ended."""
        self._pulses.remove(pulse)

    def late(self) -> list[str]:
        """Descriptions of all overdue operations; each is logged when it is first seen."""
        late = [(pulse.name, said) for pulse in self._pulses if (said := pulse.late)]
        for name, said in late:
            if name not in self._told:
                log.error("%s; health answers NOT_SERVING", said)
        self._told = [name for name, _ in late]
        return [said for _, said in late]


class Health(health_aio.HealthServicer):  # type: ignore[misc]  # the library has no types
    """gRPC's health service with the liveness of this process beside its readiness."""

    def __init__(self, liveness: Liveness) -> None:
        super().__init__()
        self._liveness = liveness

    async def Check(self, request: Any, context: Any) -> Any:
        """Readiness as it was set; liveness by the pulses."""
        if request.service != LIVENESS:
            return await super().Check(request, context)
        status = health_pb2.HealthCheckResponse
        return status(status=status.NOT_SERVING if self._liveness.late() else status.SERVING)
