"""Heavy work: few at a time, a bound on what waits and on what is kept, and no kept failure."""

import asyncio

import pytest

from banyan.errors import TemporaryError
from services.gateway.page import heavy
from services.gateway.page.heavy import Heavy
from services.gateway.page.http.errors import HttpError


async def test_work_that_is_over_or_failed_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heavy, "WAITING", 2)
    runner = Heavy()

    def fail() -> None:
        raise ValueError("no")

    for number in range(5):
        assert await runner.run(lambda n=number: n) == number  # type: ignore[misc]
        with pytest.raises(ValueError, match="no"):
            await runner.run(fail)


async def test_as_many_wait_as_may_and_the_next_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heavy, "WAITING", 3)
    runner, goes = Heavy(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> bool:
        return asyncio.run_coroutine_threadsafe(goes.wait(), loop).result(30)

    busy = [asyncio.create_task(runner.run(wait)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(HttpError, match="3 heavy requests wait already") as refused:
        await runner.run(wait)
    assert refused.value.status == 503
    goes.set()
    assert await asyncio.gather(*busy) == [True] * 3


async def test_the_results_asked_for_last_are_kept() -> None:
    runner, made = Heavy(), list[str]()

    async def get(name: str) -> str:
        async def make() -> str:
            made.append(name)
            return name

        return await runner.kept((name,), make)

    names = [str(number) for number in range(heavy.KEPT)]
    for name in [*names, "0", "another", "0"]:
        assert await get(name) == name
    assert made == [*names, "another"]
    assert await get("1") == "1" and made[-1] == "1", "the one that was not asked for longest went"


async def test_a_failure_is_not_kept() -> None:
    runner, tries = Heavy(), 0

    async def make() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TemporaryError("the store is away")
        return "made"

    with pytest.raises(TemporaryError):
        await runner.kept(("k",), make)
    assert await runner.kept(("k",), make) == "made"


async def test_one_that_leaves_does_not_stop_the_making_for_the_others() -> None:
    runner, goes = Heavy(), asyncio.Event()

    async def make() -> str:
        await goes.wait()
        return "made"

    leaving, staying = (asyncio.create_task(runner.kept(("k",), make)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    goes.set()
    assert await staying == "made"
