"""Liveness by progress: loops and threads declare deadlines, and the health service checks them.

The health service of gRPC has two answers here. The empty name is readiness: calls make sense now.
`liveness` is SERVING while every pulse is in time. Its handler runs on the event loop, so that any
answer proves that the loop runs. See ADR 047.
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

LIVENESS = "liveness"  # name in requests to the health service, also in the probes of k8s/
_RESTING = ("", math.inf, math.inf)


class Pulse:
    """The progress of a loop or thread: its operation, and the deadline of that.

    Any thread may call it.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self._clock = name, clock
        # Operation, its time in seconds, its deadline. Replaced as a whole: threads read it.
        self._state = _RESTING

    def beat(self, doing: str, within_s: float) -> None:
        """Record progress, and begin an operation that may take `within_s` at most."""
        self._state = (doing, within_s, self._clock() + within_s)

    def rest(self) -> None:
        """Record that nothing is under way: there is no deadline until the next beat."""
        self._state = _RESTING

    def again(self) -> None:
        """Restart the time of the operation, which waits for something that is known to be away.

        A rest stays a rest.
        """
        doing, within_s, _ = self._state
        self.beat(doing, within_s)

    @contextlib.contextmanager
    def during(self, doing: str, within_s: float) -> Iterator[None]:
        """Declare an operation with its deadline; rest when the block ends."""
        self.beat(doing, within_s)
        try:
            yield
        finally:
            self.rest()

    @property
    def late(self) -> str:
        """Description of the overdue operation; empty without one."""
        doing, _, due = self._state
        over_s = self._clock() - due
        return f"{self.name}: {doing} is {over_s:.0f} s over its deadline" if over_s > 0 else ""


class Liveness:
    """The pulses of a process."""

    def __init__(self) -> None:
        self._pulses: list[Pulse] = []
        self._logged: list[str] = []  # names of the pulses that were late at the last call

    def add(self, *pulses: Pulse) -> None:
        """Add pulses; each counts from its first beat on."""
        self._pulses += pulses

    def drop(self, pulse: Pulse) -> None:
        """Drop a pulse whose loop has ended."""
        self._pulses.remove(pulse)

    def late(self) -> list[str]:
        """Return descriptions of all overdue operations; log each when it becomes overdue."""
        late = [(pulse.name, pulse.late) for pulse in self._pulses]
        late = [(name, description) for name, description in late if description]
        for name, description in late:
            if name not in self._logged:
                log.error("%s; health answers NOT_SERVING", description)
        self._logged = [name for name, _ in late]
        return [description for _, description in late]


class Health(health_aio.HealthServicer):  # type: ignore[misc]  # the library has no types
    """The health service of gRPC, with the liveness of this process beside its readiness."""

    def __init__(self, liveness: Liveness) -> None:
        super().__init__()
        self._liveness = liveness

    async def Check(self, request: Any, context: Any) -> Any:
        """Return readiness as it was set, or liveness from the pulses."""
        if request.service != LIVENESS:
            return await super().Check(request, context)
        status = health_pb2.HealthCheckResponse
        return status(status=status.NOT_SERVING if self._liveness.late() else status.SERVING)
