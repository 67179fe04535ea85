"""The looks that readers of a stream share: first events, limits, slow readers, and ends."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from banyan.errors import NotFound, TemporaryError
from services.gateway.page.http import streams
from services.gateway.page.http.streams import Event, Hub, Reader

pytestmark = pytest.mark.usefixtures("fast_looks")


class Counted:
    """A source of numbers."""

    def __init__(self, most: int = 10**9, size: int = 1) -> None:
        self.polls, self.over, self._most, self._size = 0, False, most, size

    async def poll(self) -> list[Event]:
        self.polls += 1
        self.over = self.polls >= self._most
        return [self._event()]

    async def first(self, last: str) -> list[Event]:
        return [] if last else [self._event()]

    def _event(self) -> Event:
        return Event("n", json.dumps("x" * self._size).encode(), str(self.polls))


async def taken(
    hub: Hub, source: Any, most: int, key: str = "k", last: str = ""
) -> list[Event | None]:
    found: list[Event | None] = []
    with hub.reading((key,), lambda: source) as reading:
        async with contextlib.aclosing(reading.events(last)) as events:
            async for event in events:
                found.append(event)
                if len(found) >= most:
                    break
    return found


async def test_many_readers_share_one_loop() -> None:
    hub, made = Hub(), []

    def make() -> Counted:
        made.append(Counted())
        return made[-1]

    async def read() -> int:
        with hub.reading(("k",), make) as reading:
            async with contextlib.aclosing(reading.events("")) as events:
                return len([None async for _, _ in _zipped(events, range(5))])

    assert await asyncio.gather(*(read() for _ in range(20))) == [5] * 20
    # setdefault makes one for each reader and keeps the first; only that is looked at
    assert sum(source.polls > 0 for source in made) == 1
    assert hub.streams == 0 and not hub._pollers


async def _zipped(events: AsyncGenerator[Any], numbers: Any) -> AsyncIterator[tuple[Any, int]]:
    for number in numbers:
        yield await anext(events), number


async def test_the_33rd_stream_is_refused_and_a_place_comes_back() -> None:
    hub = Hub()
    with contextlib.ExitStack() as stack:
        for number in range(streams.MOST_STREAMS):
            stack.enter_context(hub.reading((str(number),), Counted))
        with pytest.raises(Exception, match="32 live streams are open") as refusal:
            hub.free()
        assert refusal.value.status == 503  # type: ignore[attr-defined]
    hub.free()


async def test_a_reader_that_takes_nothing_is_ended_and_holds_a_bounded_queue() -> None:
    reader = Reader()
    for number in range(1000):
        reader.put(Event("n", b"1", str(number)))
    found = [event async for event in reader.events()]
    assert [event.id for event in found if event] == [str(n) for n in range(streams.QUEUE)]


async def test_one_without_events_gets_a_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BEAT_S", 0.02)

    class Silent(Counted):
        async def poll(self) -> list[Event]:
            return []

    assert await taken(Hub(), Silent(), 3, last="7") == [None, None, None]


async def test_a_source_that_ends_says_so_and_ends_the_stream() -> None:
    found = await taken(Hub(), Counted(most=2), 99)
    assert [event.name for event in found if event] == ["n", "n", "n", "over"]


async def test_a_store_that_is_away_for_a_while_ends_no_stream() -> None:
    class Flaky(Counted):
        async def poll(self) -> list[Event]:
            self.polls += 1
            if self.polls < 3:
                raise TemporaryError("away")
            return await super().poll()

    found = await taken(Hub(), Flaky(), 3)
    assert [event.name for event in found if event] == ["n", "n", "n"]


async def test_a_thing_that_is_gone_ends_the_stream_with_the_reason() -> None:
    class Gone(Counted):
        async def poll(self) -> list[Event]:
            raise NotFound("there is no run r")

    *_, last = await taken(Hub(), Gone(), 99)
    assert last and last.name == "over" and json.loads(last.data)["reason"] == "NOT_FOUND"


async def test_a_source_that_fails_inside_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Counted):
        async def poll(self) -> list[Event]:
            raise RuntimeError("the password is hunter2")

    async with asyncio.timeout(5):
        found = await taken(Hub(), Broken(), 99)
    assert [event.name for event in found if event] == ["n"] and "hunter2" in caplog.text


async def test_nobody_looks_once_the_last_reader_has_left(eventually: Any) -> None:
    hub, source = Hub(), Counted()
    await taken(hub, source, 3)

    def looking() -> bool:
        return any(task.get_name() == "poll-page" for task in asyncio.all_tasks())

    await eventually(lambda: not looking(), what="the loop has ended")


async def test_what_comes_while_a_reader_gets_its_first_events_is_not_lost() -> None:
    goes = asyncio.Event()

    class Slow(Counted):
        async def first(self, last: str) -> list[Event]:
            if last == "slow":
                await goes.wait()
            return [Event("first", b"0")]

        async def poll(self) -> list[Event]:
            self.polls += 1
            goes.set()
            return [self._event()] if self.polls == 1 else []

    hub, source = Hub(), Slow()
    late = asyncio.create_task(taken(hub, source, 2, last="slow"))
    await asyncio.sleep(0)
    with hub.reading(("k",), lambda: source) as reading:
        async with contextlib.aclosing(reading.events("")) as events:
            both = [await anext(events), await anext(events)]
            assert [event.name for event in both if event] == ["first", "n"]
            async with asyncio.timeout(5):
                assert [event.name for event in await late if event] == ["first", "n"]


async def test_a_reader_that_comes_when_all_is_over_gets_the_first_events_and_the_end() -> None:
    hub, source = Hub(), Counted(most=1)
    with hub.reading(("k",), lambda: source) as reading:
        async with contextlib.aclosing(reading.events("")) as events:
            assert [event.name async for event in events if event] == ["n", "n", "over"]
            async with asyncio.timeout(5):
                found = await taken(hub, source, 99)
    assert [event.name for event in found if event] == ["n"]


async def test_a_source_that_takes_long_is_looked_at_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_SHARE", 1e9)  # the rest lasts, however short the look was
    monkeypatch.setattr(streams, "BEAT_S", 0.05)
    source = Counted()
    found = await taken(Hub(), source, 5)
    assert [event.name for event in found if event] == ["n", "n"] and source.polls == 1


def test_no_text_can_end_an_event() -> None:
    text = 'x\n\nevent: over\ndata: {"a": 1}\r\n\r\n\u2028'
    encoded = Event("news", json.dumps(text).encode()).encoded()
    assert encoded.count(b"\n") == 3 and encoded.endswith(b"\n\n") and b"\r" not in encoded
