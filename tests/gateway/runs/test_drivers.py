"""The drivers of a gateway: faults of a run end neither another run nor the gateway."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import BanyanError, Refused
from banyan.v1.runstore_service_pb2 import RunState as S
from services.gateway.runs import driver
from services.gateway.runs.create import new_run
from services.gateway.runs.driver import Driver
from services.gateway.runs.drivers import Drivers
from services.gateway.tasks import dataset


@contextlib.asynccontextmanager
async def driving(store: Any, bus: Any):
    drivers = Drivers(store, bus, store, 1)
    task = asyncio.create_task(drivers.run())
    try:
        yield task, drivers
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def begin(store: Any, recipe: Any, request: str = "request"):
    rows = await dataset.load(recipe, Path.cwd())
    run = new_run(recipe, rows, "/folder", Path("s")).run
    await store.put_run(run, request)
    return run


def of_file(recipe_of: Any, path: Path):
    path.write_text(
        "".join(json.dumps({"prompt": f"{n} + {n}", "answer": 2 * n}) + "\n" for n in range(20))
    )
    return recipe_of(task={"name": "file", "path": str(path), "reward": "m:f", "holdout": 0.2})


@pytest.mark.parametrize("changed", [True, False])
async def test_a_run_whose_rows_are_gone_is_paused_and_goes_on_when_they_are_back(
    store, bus, recipe_of, tmp_path, eventually, changed
) -> None:
    path = tmp_path / "rows.jsonl"
    run = await begin(store, of_file(recipe_of, path))
    kept = path.read_text()
    path.write_text(kept.replace("1 + 1", "1 + 3")) if changed else path.unlink()
    async with driving(store, bus) as (task, drivers):
        await eventually(lambda: run.state == S.RUN_STATE_PAUSED)
        assert ("restore them" if changed else "there is no file") in run.cause
        assert run.resume_state == S.RUN_STATE_STARTING
        await eventually(lambda: store.desired[run.run_id] == {})
        path.write_text(kept)
        await store.move_run(run.run_id, S.RUN_STATE_PAUSED, S.RUN_STATE_STARTING, "")
        drivers.wake(run.run_id)
        await eventually(lambda: store.desired[run.run_id] == {"rollout": 1, "learner": 1})
        assert not task.done()


async def test_a_run_that_moves_while_it_is_taken_on_does_not_end_the_gateway(
    store, bus, recipe_of, tmp_path, eventually, monkeypatch
) -> None:
    path = tmp_path / "rows.jsonl"
    run = await begin(store, of_file(recipe_of, path))
    path.unlink()

    async def cancelled_meanwhile(*_: Any) -> None:
        run.state = S.RUN_STATE_CANCELLED
        raise Refused(
            f"run {run.run_id} is in CANCELLED, not in STARTING; read it again", "WRONG_STATE"
        )

    monkeypatch.setattr(store, "move_run", cancelled_meanwhile)
    async with driving(store, bus) as (task, _):
        await eventually(lambda: run.state == S.RUN_STATE_CANCELLED)
        await eventually(lambda: store.desired.get(run.run_id) == {})
        assert not task.done()


async def test_a_curriculum_that_raises_fails_its_run_and_no_other(
    store, bus, recipe_of, eventually
) -> None:
    store.publish(0)
    plain = {"task": {"holdout": 0.0}, "eval": {"samples": 0}}
    rude = await begin(
        store,
        recipe_of(
            name="rude", control={"curriculum": "tests.gateway.curriculum_doubles:Rude"}, **plain
        ),
        "1",
    )
    other = await begin(store, recipe_of(name="other", **plain), "2")
    async with driving(store, bus) as (task, _):
        await eventually(lambda: rude.state == S.RUN_STATE_FAILED or task.done())
        assert rude.cause.startswith(
            "control.curriculum tests.gateway.curriculum_doubles:Rude raised ZeroDivisionError: "
        )
        await eventually(lambda: other.state == S.RUN_STATE_TRAINING)
        assert not task.done()


@pytest.mark.parametrize("fault", [BanyanError("treestore: INTERNAL: broken"), KeyError("gone")])
async def test_a_fault_that_nobody_foresaw_fails_its_run_and_no_other(
    store, bus, recipe_of, eventually, monkeypatch, fault
) -> None:
    monkeypatch.setattr(driver, "TICK_S", 0.05)
    run = await begin(store, recipe_of())

    async def broken(_: str) -> Any:
        raise fault

    monkeypatch.setattr(store, "read_progress", broken)
    async with driving(store, bus) as (task, _):
        await eventually(lambda: run.state == S.RUN_STATE_FAILED or task.done())
        assert not task.done() and run.cause in ("treestore: INTERNAL: broken", "KeyError: 'gone'")


async def test_a_driver_that_dies_fails_its_run_and_no_other(
    store, bus, recipe_of, eventually, monkeypatch
) -> None:
    run = await begin(store, recipe_of())

    async def dies(*_: Any) -> bool:
        raise ZeroDivisionError("in the driver itself")

    monkeypatch.setattr(Driver, "_try_reconcile", dies)
    async with driving(store, bus) as (task, _):
        await eventually(lambda: run.state == S.RUN_STATE_FAILED or task.done())
        assert not task.done() and run.cause == "ZeroDivisionError: in the driver itself"
        await eventually(lambda: store.desired.get(run.run_id) == {})


async def test_a_run_that_cannot_be_driven_fails_and_no_other(
    store, bus, recipe_of, eventually
) -> None:
    run = await begin(
        store, recipe_of(control={"curriculum": "tests.gateway.curriculum_doubles:Unclear"})
    )
    async with driving(store, bus) as (task, _):
        await eventually(lambda: run.state == S.RUN_STATE_FAILED or task.done())
        assert not task.done() and "curriculum_doubles:Unclear: right must be a number" in run.cause


async def test_a_store_that_cannot_say_which_runs_there_are_is_asked_again(
    store, bus, recipe_of, eventually, monkeypatch
) -> None:
    run = await begin(store, recipe_of())
    read, asked = store.read_runs, []

    async def broken(live_only: bool) -> Any:
        asked.append(live_only)
        if len(asked) == 2:  # the first sweep
            raise BanyanError("treestore: RESOURCE_EXHAUSTED: too much")
        return await read(live_only)

    monkeypatch.setattr(store, "read_runs", broken)
    async with driving(store, bus) as (task, drivers):
        await eventually(lambda: len(asked) == 2)
        drivers.wake("")
        await eventually(lambda: run.run_id in store.desired or task.done())
        assert not task.done()


async def test_watchers_that_left_are_forgotten(store, bus) -> None:
    drivers = Drivers(store, bus, store, 1)
    with drivers.watching("r"), drivers.watching("r") as second:
        drivers.wake("r")
        assert second.is_set()
    assert not drivers._watchers
