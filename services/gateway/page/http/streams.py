"""Server-sent events with shared pollers: one for each thing that is watched, however many watch.

A reader's events wait in a bounded queue. One whose queue is full, or that takes nothing for the
deadline of a write, is cut; it connects again and names the last event that it has.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from banyan.errors import BanyanError, PermanentError
from banyan.reasons import Reason
from services.gateway.page.http.errors import HttpError, encoded

log = logging.getLogger(__name__)

MOST_STREAMS = 32
QUEUE = 8  # events that wait for one reader
BEAT_S = 8.0  # between comments to a reader without events
EVERY_S = 1.0  # between two looks at what is watched
_SHARE = 4.0  # rest after a look, in times that the look took
_LONGEST_S = 30.0  # between two looks, whatever one takes


@dataclass(frozen=True, slots=True)
class Event:
    """An event: its name, its data as JSON, and the id by which a reader goes on behind it."""

    name: str
    data: bytes
    id: str = ""

    def encoded(self) -> bytes:
        """Return the event as it is sent. JSON of one line needs no further escapes."""
        head = f"event: {self.name}\n" + (f"id: {self.id}\n" if self.id else "")
        return head.encode() + b"data: " + self.data + b"\n\n"


class Source(Protocol):
    """Something that is watched."""

    over: bool
    """True once nothing more will come."""

    async def poll(self) -> list[Event]:
        """Return the events since the last look."""
        ...

    async def first(self, last: str) -> list[Event]:
        """Return the events that a new reader begins with.

        last: id of the last event that it has; empty for none
        """
        ...


class Reader:
    """One reader of a source."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE + 1)  # one for the end
        self._ended = False

    def put(self, event: Event) -> None:
        """Add an event; end the stream if too many wait."""
        if self._ended:
            return
        if self._queue.qsize() >= QUEUE:
            return self.end()
        self._queue.put_nowait(event)

    def end(self) -> None:
        """End the stream after what waits."""
        if not self._ended:
            self._ended = True
            self._queue.put_nowait(None)

    async def events(self) -> AsyncGenerator[Event | None]:
        """Yield the events, and None where there was none for a while."""
        while True:
            try:
                async with asyncio.timeout(BEAT_S):
                    event = await self._queue.get()
            except TimeoutError:
                yield None
                continue
            if event is None:
                return
            yield event


class _Poller:
    """The loop over one source, while anybody reads it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.readers: set[Reader] = set()
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Look at the source until it is over or can be read no more."""
        while True:
            began = time.monotonic()
            try:
                for event in await self.source.poll():
                    self._put(event)
            except PermanentError as error:  # such as a run that was removed
                self._put(Event("over", encoded({"reason": error.reason, "message": str(error)})))
                return self.end()
            except BanyanError as error:
                log.info("a watched page waits: %s", error)
            except Exception:  # else its readers would wait for ever, as if nothing happened
                log.exception("what a page watches cannot be read")
                return self.end()
            if self.source.over:
                self._put(Event("over", encoded({"reason": None, "message": None})))
                return self.end()
            took = time.monotonic() - began
            await asyncio.sleep(min(_LONGEST_S, max(EVERY_S, _SHARE * took)))

    def _put(self, event: Event) -> None:
        for reader in self.readers:
            reader.put(event)

    def end(self) -> None:
        """End all readers."""
        for reader in self.readers:
            reader.end()


class Hub:
    """All streams of the page."""

    def __init__(self) -> None:
        self._pollers: dict[tuple[str, ...], _Poller] = {}
        self.streams = 0

    def free(self) -> None:
        """Raise HttpError if no further stream can be opened."""
        if self.streams >= MOST_STREAMS:
            raise HttpError(
                503,
                Reason.RESOURCE_EXHAUSTED,
                f"{MOST_STREAMS} live streams are open, and more are not; close another page",
            )

    @contextlib.contextmanager
    def reading(self, key: tuple[str, ...], make: Callable[[], Source]) -> Iterator["Reading"]:
        """Read a source until the block is left. Raise HttpError if too many do.

        key: name of the source
        """
        self.free()
        self.streams += 1
        poller = self._pollers.setdefault(key, _Poller(make()))
        reader = Reader()
        try:
            yield Reading(poller, reader)
        finally:
            self.streams -= 1
            poller.readers.discard(reader)
            if not poller.readers:
                if poller.task is not None:
                    poller.task.cancel()
                if self._pollers.get(key) is poller:
                    del self._pollers[key]

    def close(self) -> None:
        """End all streams."""
        for poller in self._pollers.values():
            poller.end()
            if poller.task is not None:
                poller.task.cancel()


class Reading:
    """A reader that has begun."""

    def __init__(self, poller: _Poller, reader: Reader) -> None:
        self._poller, self._reader = poller, reader

    async def events(self, last: str) -> AsyncGenerator[Event | None]:
        """Yield the first events, then new ones, and None where there was none for a while."""
        poller = self._poller
        # From now on, so that nothing is lost between the first events and the next.
        poller.readers.add(self._reader)
        for event in await poller.source.first(last):
            yield event
        if poller.task is None:
            poller.task = asyncio.create_task(poller.run(), name="poll-page")
        elif poller.task.done():
            self._reader.end()
        async for later in self._reader.events():
            yield later
