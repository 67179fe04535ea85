"""The verifier's health service answers for both of its consumers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from banyan.runtime.ports import free_port
from services.verifier import __main__ as service
from tests.liveness import answers_for


async def test_health_answers_for_each_consumer(
    nats_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, stop = f"127.0.0.1:{free_port()}", asyncio.Event()
    told = {
        "NATS": nats_server.url,
        "STORE": "127.0.0.1:9",
        "LISTEN": address,
        "STATE": str(tmp_path),
    }
    for name, value in told.items():
        monkeypatch.setenv(f"BANYAN_{name}", value)
    monkeypatch.setattr(service.kernel, "prctl", lambda *_: None)  # this process is the tests'
    running = asyncio.create_task(service.run(stop))
    try:
        await answers_for(address, ("leaves", "groups"))
    finally:
        stop.set()
        await asyncio.wait_for(running, 30)
