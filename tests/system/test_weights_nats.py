"""Weights through NATS: own nodes rebuild them, joined ones fetch them, and no bucket is left."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from services.chassis.weights import file as weightfile
from tests.system.joining import Training, joined, training
from tests.system.tiny import torch_recipe


def through_nats(folder: Path, **resources: Any) -> dict[str, Any]:
    made = torch_recipe(folder)
    made["resources"] |= {
        "weights": "nats",
        "weights_base_every": 4,
        "dtype": "bfloat16",
        **resources,
    }
    return made


def sampled(run: Training, ours: bool) -> set[tuple[int, bytes]]:
    which = "= 'rollout-0'" if ours else "not in ('', 'rollout-0')"
    rows = run.rows(
        f"select distinct policy_step, policy_digest from segments where producer {which}"
    )
    return {(step, bytes(digest)) for step, digest in rows if step > 0}


async def ready(run: Training, service: str) -> int:
    """Return the pid of a service's process once it runs, perhaps after a restart."""
    async with asyncio.timeout(120.0):
        while True:
            for process in await run.ask("ps"):
                if process["service"] == service and process["state"] == "ready":
                    return int(process["pid"])


def streams(run: Training) -> list[str]:
    return sorted(p.name for p in run.state.rglob("OBJ_weights-*"))


@pytest.mark.slow
async def test_own_nodes_rebuild_and_joined_ones_fetch_what_the_learner_published(
    tmp_path: Path, eventually: Any
) -> None:
    folder = tmp_path / "run"
    async with (
        training(folder, through_nats(folder)) as run,
        joined(run, tmp_path / "node", "--threads", "1") as node,
    ):
        await eventually(
            lambda: len(sampled(run, ours=False)) >= 3,
            240.0,
            "trees of three policies from the joined node",
        )
        await eventually(
            lambda: len(sampled(run, ours=True)) >= 3,
            120.0,
            "trees of three policies from the run's own node",
        )
        assert streams(run)
        published = {
            bytes(digest)
            for (digest,) in run.rows("select digest from policies where not abandoned")
        }
        assert {digest for _, digest in sampled(run, True) | sampled(run, False)} <= published
        own = list((run.state / "weights").rglob("policy-*.json"))
        assert (await run.ask("runs", "cancel", run.run_id))["state"] == "CANCELLED"
        assert await node.ends(30.0) == 0, node.output
        assert await run.command.ends(60.0) == 1, run.command.output
    assert own, "the run's own node read the learner's folder"
    files = [weightfile.open_verified(file) for file in (tmp_path / "node").rglob("policy-*.json")]
    assert files and {f.digest for f in files} <= {
        bytes(d) for (d,) in run.rows("select digest from policies")
    }
    assert streams(run) == []  # the run's end takes its bucket


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("victim", ["nats", "learner"])
async def test_weights_go_on_when_a_process_is_killed(
    tmp_path: Path, eventually: Any, victim: str
) -> None:
    folder = tmp_path / "run"
    async with training(folder, through_nats(folder)) as run:
        for more in (2, 4, 6):
            await eventually(
                lambda more=more: len(sampled(run, True)) >= more,
                240.0,
                f"trees of {more} policies",
            )
            os.kill(await ready(run, victim), signal.SIGKILL)
        await eventually(lambda: len(sampled(run, True)) >= 8, 240.0, "trees of eight policies")
        published = {bytes(digest) for (digest,) in run.rows("select digest from policies")}
        assert {digest for _, digest in sampled(run, True)} <= published
        await run.ask("runs", "cancel", run.run_id)
        assert await run.command.ends(60.0) == 1, run.command.output
