"""The node as its process wires it, in this process: what its health answers for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.chassis.nats_server import free_port
from services.rollout import __main__ as service
from services.rollout.engines import thread
from tests.liveness import answers_for
from tests.rollout.world import RUN, World, world

LOOPS = ("engine", "taking trees", "starting trees", "passing on", "policies", "sending", "claims", "presence")


@contextlib.asynccontextmanager
async def process(w: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The node n1 of the world's run; its address."""
    address, stop = f"127.0.0.1:{free_port()}", asyncio.Event()
    told = {"NATS": w.url, "STORE": w.address, "LISTEN": address, "RUN": RUN, "NODE_ID": "n1", "THREADS": "1"}
    for name, value in {**told, "STATE": str(folder)}.items():
        monkeypatch.setenv(f"BANYAN_{name}", value)
    running = asyncio.create_task(service.run(stop))
    try:
        yield address
    finally:
        stop.set()
        await asyncio.wait_for(running, 30)


async def test_health_answers_for_the_engine_and_each_loop(nats_server: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(thread, "_LOOK_S", 600.0)  # the node's own look at the engine, which would end it
    async with world(nats_server.url, tmp_path / "state") as w:
        await w.begin()
        async with process(w, tmp_path, monkeypatch) as address:
            await answers_for(address, LOOPS)
