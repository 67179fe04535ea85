"""Endpoints of the system: its processes, queues and dead letters."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from banyan.errors import BanyanError
from services.gateway.page.api.endpoint import AFTER, LIMIT, Call, Endpoint
from services.gateway.page.documents import system
from services.gateway.page.http.json_types import NEXT, count, each, named, ref, text
from services.gateway.page.http.parameters import cursor, place_of
from services.gateway.page.reads import Reads

_PROCESSES = "processes.json"  # written by the supervisor
_FRESH_S = 1.0  # many pages ask for the same
_PATIENCE_S = 1.0
T = TypeVar("T")
Queues = Callable[[], Awaitable[list[dict[str, Any]]]]


class System:
    """Handlers of the system.

    state: the state folder
    queues: reads the depths of the queues; None where nothing runs
    """

    def __init__(self, reads: Reads, state: Path, queues: Queues | None) -> None:
        self._reads, self._file, self._queues = reads, state / _PROCESSES, queues
        self._known: tuple[float, dict[str, Any]] | None = None
        self._lock = asyncio.Lock()

    async def system(self, call: Call) -> dict[str, Any]:
        # A store or a broker that is away must not hide the processes that are.
        async with self._lock:
            if self._known is None or time.monotonic() - self._known[0] > _FRESH_S:
                self._known = (time.monotonic(), await self._slow())
        return {"processes": await asyncio.to_thread(self._processes), **self._known[1]}

    def _processes(self) -> list[dict[str, Any]]:
        try:
            return system.processes(self._file.read_text())
        except OSError:
            return []  # on a cluster, where no supervisor is

    async def _slow(self) -> dict[str, Any]:
        (known, no_store), (queues, no_queues) = await asyncio.gather(
            _within(self._reads.stats(), "the store"), _within(self._depths(), "the broker")
        )
        return {
            "queues": queues or [],
            "store": known or {},
            "dead": (known or {}).get("dead", 0),
            "missing": [words for words in (no_store, no_queues) if words],
        }

    async def _depths(self) -> list[dict[str, Any]]:
        return [] if self._queues is None else await self._queues()

    async def dead(self, call: Call) -> dict[str, Any]:
        limit = call.query["limit"]
        before = place_of("dead", call.query["after"], int)
        found = await self._reads.dead(limit + 1, before[0] if before else 0)
        following = cursor("dead", found[limit - 1].id) if len(found) > limit else None
        return {"letters": system.letters(found[:limit]), "next": following}

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/api/system",
                about="The processes and queues of the system, and counts of the store.",
                handler=self.system,
                answers={
                    "processes": each(
                        ref("Process"), "with its state now; one that was killed is `dead`"
                    ),
                    "queues": each(
                        ref("Queue"), "messages that wait for each consumer of a stream"
                    ),
                    "store": named(count(), "counts by name"),
                    "dead": count("dead letters"),
                    "missing": each(text(), "why a part could not be read; empty if all could"),
                },
            ),
            Endpoint(
                method="GET",
                path="/api/dead",
                about="Messages that could not be processed, newest first.",
                handler=self.dead,
                answers={"letters": each(ref("Letter"), "a line each"), "next": NEXT},
                parameters=(LIMIT, AFTER),
            ),
        )


async def _within(reading: Awaitable[T], who: str) -> tuple[T | None, str]:
    """Return what is read, or why nothing is: soon, as the processes must be shown in any case."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await reading, ""
    except TimeoutError:
        return None, f"{who} does not answer within {_PATIENCE_S:g} s"
    except BanyanError as error:
        return None, str(error)
