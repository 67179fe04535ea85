"""`banyan runs rm`: rows, files, and messages; stopped at any point, it continues when repeated."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from banyan.cli.runs import removal as removing
from banyan.client import Client
from banyan.errors import NotFound, Refused
from banyan.runtime import run_files
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.messaging import subjects
from services.chassis.rpc import rpc
from services.treestore.control import removal
from tests.cli.command import banyan
from tests.treestore.client import Store, served


class Stopped(Exception):
    """End of the command."""


class Halting(Client):
    """Client whose command ends before its call `left`."""

    left = 0

    def remove(self, *words: Any, **more: Any) -> rs.RemoveRunResponse:
        if not self.left:
            raise Stopped
        self.left -= 1
        return super().remove(*words, **more)


async def _ended(store: Store, state: Path) -> rs.Run:
    """Make a run that is over, with rows, messages, a queue and files."""
    for ordinal in range(4):
        await store.grow(store.forge.spec(ordinal))
    run_id = store.forge.run_id
    await store.bus.consumer(
        subjects.GROWTH, subjects.growth_durable(run_id), [subjects.growth(run_id)]
    )
    folder = state / "runs" / run_id
    for name in ("checkpoints/step-1-epoch-1/model.safetensors", "loggers/metrics.jsonl"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("x")
    move = rs.MoveRunRequest(
        run_id=run_id,
        gateway_epoch=1,
        from_state=rs.RUN_STATE_TRAINING,
        to_state=rs.RUN_STATE_SUCCEEDED,
    )
    return (await rpc.call(store.runs.MoveRun, move)).run


async def _held(store: Store) -> dict[str, int]:
    """Return the messages of the run by subject."""
    result = dict[str, int]()
    for stream in (subjects.LINEAGE, subjects.TRAIN, subjects.GROWTH):
        result |= {
            name: 1 for name in await store.bus.subjects_of(stream) if store.forge.run_id in name
        }
    return result


@pytest.mark.parametrize("keep", ["", "metrics"])
async def test_it_is_gone_on_with_wherever_it_was_stopped(
    nats_server: Any, tmp_path: Path, monkeypatch, keep: str
) -> None:
    monkeypatch.setattr(removal, "_ROWS", 6)
    state = tmp_path / "state"
    async with served(nats_server.url, state) as store:
        run = await _ended(store, state)
        assert await _held(store)
        kept = removing.KEEP[keep]
        for calls in range(100):
            with Halting(store.address) as client:
                client.left = calls % 4
                try:
                    await asyncio.to_thread(removing.remove, client, state, run, kept)
                    break
                except Stopped:
                    continue
        assert calls >= 3, "it was stopped before"
        assert not await _held(store)
        assert subjects.growth_durable(run.run_id) not in await store.bus.ack_floors(
            subjects.GROWTH
        )
        folder = state / "runs" / run.run_id
        assert not (folder / "checkpoints").exists()
        assert (folder / "loggers" / "metrics.jsonl").exists() == bool(keep)
        with Client(store.address) as client:
            if keep:
                assert (
                    await asyncio.to_thread(client.run, run.run_id)
                ).state == rs.RUN_STATE_SUCCEEDED
                assert not await asyncio.to_thread(client.trees, run.run_id)
            else:
                with pytest.raises(NotFound):
                    await asyncio.to_thread(client.run, run.run_id)


async def test_files_that_are_not_ours_stay(nats_server: Any, tmp_path: Path) -> None:
    """A folder that a person named may hold more."""
    state, mine = tmp_path / "state", tmp_path / "mine"
    (mine / "checkpoints").mkdir(parents=True)
    (mine / "thesis.txt").write_text("x")
    run_files.remove(state, rs.Run(run_id="r", folder=str(mine)), everything=True)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


async def test_a_live_run_keeps_its_files(nats_server: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with served(nats_server.url, state) as store:
        (state / "runs" / store.forge.run_id / "checkpoints").mkdir(parents=True)
        with Client(store.address) as client:
            run = await asyncio.to_thread(client.run, store.forge.run_id)
            with pytest.raises(Refused, match=f"{run.run_id} is TRAINING and may go on"):
                await asyncio.to_thread(removing.remove, client, state, run, rs.KEPT_UNSPECIFIED)
        assert (state / "runs" / store.forge.run_id / "checkpoints").exists()


def test_only_what_is_known_can_be_kept(tmp_path: Path) -> None:
    ended = banyan("runs", "rm", "r", "--keep", "weights", "--state", str(tmp_path))
    assert ended.returncode != 0 and "say metrics or trees" in ended.stdout + ended.stderr
