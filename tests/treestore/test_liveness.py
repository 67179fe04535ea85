"""The store answers for each loop: one that hangs is late, one that waits for work is not."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.chassis.messaging import subjects
from services.chassis.rpc.health import Pulse
from services.treestore.loops.dead_letters import DeadLetters
from services.treestore.loops.ingester import Ingester
from services.treestore.loops.maintenance import Maintenance
from services.treestore.loops.outbox import Outbox
from tests.liveness import Clock, answers_for
from tests.treestore.client import served

LOOPS = ("ingest", "dead letters", "outbox", "deadlines", "log")


async def test_health_answers_for_each_loop(nats_server: Any, tmp_path: Path) -> None:
    async with served(nats_server.url, tmp_path / "state", begin=False) as store:
        await answers_for(store.address, LOOPS)


class Turns:
    """A call that answers a few turns, 100 s each, and then never again."""

    def __init__(self, pulse: Callable[[], Pulse], answer: Any) -> None:
        self._pulse, self._answer, self.clock = pulse, answer, Clock()
        self.turns, self.late, self.hangs = 0, list[str](), asyncio.Event()

    async def __call__(self, *_: object) -> Any:
        self.turns += 1
        if self.turns > 4:
            self.hangs.set()
            await asyncio.Event().wait()
        self.clock.now += 100.0
        self.late += [late] if (late := self._pulse().late) else []
        return self._answer


async def _late_once_it_hangs(loop: Awaitable[None], turns: Turns, pulse: Pulse) -> None:
    pulse._clock = turns.clock
    task = asyncio.ensure_future(loop)
    try:
        async with asyncio.timeout(10):
            await turns.hangs.wait()
        assert not turns.late and not pulse.late
        turns.clock.now += 181.0
        assert pulse.late
    finally:
        task.cancel()


async def test_dead_letters_that_are_fetched_no_more_are_late_and_none_to_fetch_is_not() -> None:
    fetch = Turns(lambda: letters.pulse, [])
    letters = DeadLetters(None, SimpleNamespace(fetch=fetch))  # type: ignore[arg-type]
    await _late_once_it_hangs(letters.run(), fetch, letters.pulse)


async def test_letters_whose_transaction_hangs_are_late() -> None:
    write = Turns(lambda: letters.pulse, None)
    context: Any = SimpleNamespace(
        now=lambda: 0, settings=None, database=SimpleNamespace(write=write)
    )
    letters = DeadLetters(context, None)  # type: ignore[arg-type]

    async def many() -> None:
        while True:
            await letters.store([])

    await _late_once_it_hangs(many(), write, letters.pulse)


async def test_a_sweep_that_hangs_is_late_and_an_idle_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.treestore.loops.maintenance._CHECK_S", 0.001)
    looked = Turns(lambda: keeper.sweeping, False)
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(purge_s=100.0)
    )  # nothing is purged in this test
    keeper = Maintenance(context, None, None)  # type: ignore[arg-type]
    keeper.check_log = looked  # type: ignore[method-assign]
    await _late_once_it_hangs(keeper.sweep(), looked, keeper.sweeping)


async def test_each_part_of_a_sweep_has_its_own_time() -> None:
    part = Turns(lambda: keeper.sweeping, None)
    context: Any = SimpleNamespace(settings=SimpleNamespace(purge_s=0.01))
    keeper = Maintenance(context, None, None)  # type: ignore[arg-type]

    async def there() -> bool:
        return False

    keeper.check_log = there  # type: ignore[method-assign]
    keeper.purge = keeper.clear_growth = keeper.clear_weights = part  # type: ignore[method-assign]
    await _late_once_it_hangs(keeper.sweep(), part, keeper.sweeping)


async def test_a_look_at_deadlines_that_hangs_is_late_and_one_with_nothing_due_is_not() -> None:
    read = Turns(lambda: keeper.pulse, False)
    database = SimpleNamespace(read=read, write=read)
    context: Any = SimpleNamespace(
        now=lambda: 0, settings=SimpleNamespace(tick_ms=1), database=database
    )
    keeper = Maintenance(context, None, None)  # type: ignore[arg-type]
    await _late_once_it_hangs(keeper.watch(), read, keeper.pulse)


@pytest.mark.parametrize("what", ["queues", "weights"])
async def test_each_run_that_is_cleared_away_has_its_own_time(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    runs = [f"r{number}" for number in range(6)]
    over = Turns(lambda: keeper.sweeping, False)

    async def buckets(_: object) -> list[str]:
        return [subjects.weights_bucket(run_id) for run_id in runs]

    async def queues(_: object) -> list[str]:
        return [subjects.growth(run_id) for run_id in runs]

    async def floors(_: object) -> dict[str, int]:
        return {}

    monkeypatch.setattr("services.chassis.messaging.objects.object_store.names", buckets)
    bus: Any = SimpleNamespace(client=None, ack_floors=floors, subjects_of=queues)
    context: Any = SimpleNamespace(clearing=asyncio.Lock(), database=SimpleNamespace(read=over))
    keeper = Maintenance(context, bus, None)  # type: ignore[arg-type]
    keeper.sweeping._clock = over.clock
    keeper.sweeping.beat("a look", 180.0)
    await _late_once_it_hangs(
        keeper.clear_growth() if what == "queues" else keeper.clear_weights(), over, keeper.sweeping
    )


async def test_an_ingest_that_fetches_no_more_is_late_and_none_to_fetch_is_not() -> None:
    fetch = Turns(lambda: ingester.pulse, [])
    context: Any = SimpleNamespace(settings=SimpleNamespace(ingest_batch=1))
    ingester = Ingester(context, SimpleNamespace(fetch=fetch))  # type: ignore[arg-type]
    await _late_once_it_hangs(ingester.run(), fetch, ingester.pulse)


async def test_events_whose_transaction_hangs_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.treestore.loops.ingester.publish_outcome", lambda *_: None)
    write = Turns(lambda: ingester.pulse, SimpleNamespace(traceparents={}))
    context: Any = SimpleNamespace(
        now=lambda: 0, settings=None, database=SimpleNamespace(write=write)
    )
    ingester = Ingester(context, None)  # type: ignore[arg-type]

    async def many() -> None:
        while True:
            await ingester.store([])

    await _late_once_it_hangs(many(), write, ingester.pulse)


async def test_an_outbox_that_looks_no_more_is_late_and_an_empty_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.treestore.loops.outbox._POLL_S", 0.001)
    read = Turns(lambda: outbox.pulse, ([], []))
    outbox = Outbox(SimpleNamespace(read=read), None)  # type: ignore[arg-type]
    await _late_once_it_hangs(outbox.run(), read, outbox.pulse)


async def test_each_part_that_is_published_has_its_own_time() -> None:
    published = Turns(lambda: outbox.pulse, 1)

    async def publish(*words: object, **more: object) -> Any:
        return await published()

    async def write(_: object) -> None:
        pass

    outbox = Outbox(SimpleNamespace(write=write), SimpleNamespace(publish_bytes=publish))
    row: Any = SimpleNamespace(n=1, subject="growth.r", payload=b"", msg_id="m", traceparent="")

    async def many() -> None:
        while True:
            await outbox.publish_events([row])

    await _late_once_it_hangs(many(), published, outbox.pulse)
