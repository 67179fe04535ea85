"""Disks and checkpoints: the store's disk is full for a while; a learner dies while writing."""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.audit import audit
from tests.faults.harness import STEPS, recipe, system, tiny_model
from tests.faults.oracle.allowed import KILLED, SUCCEEDED

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "disk", "48m") as mount:
        yield mount


@pytest.fixture
def large_disk(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "disk", "200m") as mount:
        yield mount


@contextlib.contextmanager
def disk(mount: Path, size: str) -> Iterator[Path]:
    """Mount a disk of its own for the block."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def fill(disk: Path) -> Path:
    """Fill a disk to the last byte."""
    filler = disk / "filler"
    with (
        contextlib.suppress(OSError),
        filler.open("wb", buffering=0) as out,
    ):  # the store may have taken the last byte
        while True:
            out.write(b"x" * 65536)
    return filler


async def test_a_full_disk_of_the_store_holds_the_run_up_and_loses_nothing(
    tmp_path: Path, model: Path, small_disk: Path
) -> None:
    database = small_disk / "store.sqlite"
    async with system(tmp_path / "s", {"BANYAN_DATABASE": f"sqlite:///{database}"}) as made:
        run_id = await made.create(recipe(model))
        await made.reach(1)
        filler = fill(small_disk)
        await asyncio.sleep(4.0)  # the outage itself
        filler.unlink(missing_ok=True)
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(database, run_id, STEPS, KILLED) == []


async def test_a_full_disk_of_the_whole_state_folder_holds_the_run_up_until_it_has_room_again(
    model: Path, large_disk: Path
) -> None:
    """The broker keeps the error of its last write until it is started again."""
    state = large_disk / "s"
    async with system(state) as made:
        run_id = await made.create(recipe(model))
        await made.reach(1)
        broker = made.supervisor.children["nats"].pid
        filler = fill(large_disk)
        log = made.supervisor.fleet.state.log("nats")
        end = time.monotonic() + 20  # the log lies on that disk too, and may not say it
        while b"failed to store a msg" not in log.read_bytes() and time.monotonic() < end:
            await asyncio.sleep(0.1)
        filler.unlink(missing_ok=True)
        run = await made.finish()
        assert made.supervisor.children["nats"].pid != broker
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(state / "store.sqlite", run_id, STEPS, KILLED) == []


async def test_a_learner_killed_while_it_writes_a_checkpoint_goes_on_from_the_last_whole_one(
    tmp_path: Path, model: Path
) -> None:
    state = tmp_path / "s"
    async with system(state) as made:
        run_id = await made.create(
            recipe(model, optimise={"learning_rate": 1e-3, "checkpoint_every": 1})
        )
        for step in (2, 4):
            await made.reach(step)
            await _kill_while_writing(made, state / "runs" / run_id / "checkpoints")
        run = await made.finish()
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert audit(state / "store.sqlite", run_id, STEPS, SUCCEEDED) == []


async def _kill_while_writing(made, folder: Path) -> None:
    """Kill the learner as soon as there is a checkpoint without a manifest."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        torn = [p for p in folder.glob("*") if p.is_dir() and not (p / "manifest.json").exists()]
        if torn:
            await made.kill("learner")
            return
        await asyncio.sleep(0)
    raise AssertionError("no checkpoint was being written")
