"""`python -m services.learner` with two ranks, its own or torchrun's, through kill -9 of one."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from banyan.recipe import Recipe
from banyan.runtime.ports import free_port
from tests.learner import service_world as single
from tests.learner.service_world import World

pytestmark = pytest.mark.slow

Eventually = Callable[..., Awaitable[None]]


def recipe(model: Path, **optimise: Any) -> Recipe:
    data = single.recipe(model).model_dump(mode="json")
    data["resources"] |= {"learner_ranks": 2}
    data["optimise"] |= {"checkpoint_every": 1, **optimise}
    return Recipe.model_validate(data)


async def start(world: World, log: Path, *before: str) -> asyncio.subprocess.Process:
    environ = dict(
        os.environ,
        BANYAN_RUN=single.RUN,
        BANYAN_STORE=world.store,
        BANYAN_NATS=world.nats,
        BANYAN_THREADS="2",
    )
    environ |= {
        "BANYAN_STATE": str(world.folder),
        "BANYAN_WEIGHTS": str(world.folder / "weights"),
        "BANYAN_TICK_S": "0.5",
    }
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *before, "-m", "services.learner", env=environ, stderr=out, stdout=out
        )
    world.processes.append(process)
    return process


def children(pid: int) -> list[int]:
    """Return the child processes of all threads of a process."""
    lines = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return sorted(int(child) for line in lines for child in line)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def trained(world: World, eventually: Eventually, upto: int, log: Path) -> None:
    """Grow groups until policy `upto` is announced."""

    async def reached(step: int) -> bool:
        assert world.processes[-1].returncode is None, log.read_text()[-3000:]
        return await world.step() >= step

    await eventually(lambda: reached(0), 90, "the base model")
    for step in range(await world.step(), upto):
        await world.grow_group()
        await world.grow_group()
        await eventually(lambda step=step: reached(step + 1), 60, f"policy step {step + 1}")


async def test_a_rank_that_dies_ends_the_group_and_the_next_one_resumes(
    world: World, tiny_folder: Path, tmp_path: Path, eventually: Eventually
) -> None:
    log = tmp_path / "log"
    await world.begin(recipe(tiny_folder))
    process = await start(world, log)
    await trained(world, eventually, 2, log)
    (follower,) = children(process.pid)
    os.kill(follower, signal.SIGKILL)
    assert await asyncio.wait_for(process.wait(), 60) == 1
    assert "rank 1 of this learner ended by SIGKILL" in log.read_text()
    before = {p.published.policy.step: p.published.policy.digest for p in await world.policies()}

    process = await start(world, log)
    await trained(world, eventually, 3, log)
    after = {
        p.published.policy.step: p.published.policy.digest
        for p in await world.policies()
        if not p.abandoned
    }
    assert after[2] == before[2], "the same weights, from the checkpoint or trained again"
    (follower,) = children(process.pid)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await eventually(lambda: gone(follower), 30, "the other rank to follow rank 0")

    process = await start(world, log)
    await trained(world, eventually, single.STEPS, log)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 60) == 0, log.read_text()[-3000:]
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        world.folder / "checkpoints" / f"step-{single.STEPS:08d}-epoch-3"
    )
    assert loaded.config.vocab_size == 40


async def gone(pid: int) -> bool:
    return not alive(pid)


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
async def test_torchrun_starts_it_unchanged_and_ends_it_when_a_rank_dies(
    world: World,
    tiny_folder: Path,
    tmp_path: Path,
    eventually: Eventually,
    lora: dict[str, Any] | None,
) -> None:
    log = tmp_path / "log"
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    torchrun += ["--rdzv-backend", "static", "--master-addr", "127.0.0.1"]
    await world.begin(recipe(tiny_folder, lora=lora))
    process = await start(world, log, *torchrun)
    await trained(world, eventually, 1, log)
    ranks = children(process.pid)
    assert len(ranks) == 2
    follower = next(
        pid for pid in ranks if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
    )
    os.kill(follower, signal.SIGKILL)
    assert await asyncio.wait_for(process.wait(), 90) == 1
    assert not any(alive(pid) for pid in ranks)

    process = await start(world, log, *torchrun)
    await trained(world, eventually, 2, log)
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.wait(), 90)
    kept = world.folder / "checkpoints" / "step-00000002-epoch-2"
    assert (kept / "manifest.json").is_file(), log.read_text()[-3000:]
    assert (kept / ("adapter_model.safetensors" if lora else "model.safetensors")).is_file()
