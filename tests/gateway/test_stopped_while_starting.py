"""A gateway that is told to stop while it still waits for the store ends at once."""

import asyncio
import socket
from pathlib import Path

import pytest

from services.gateway import service
from services.gateway.settings import Settings

SOON_S = 5.0


@pytest.mark.parametrize("after_s", [0.0, 0.3])
async def test_a_gateway_without_a_store_stops(tmp_path: Path, after_s: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # takes connections, and answers nothing
        host, port = nobody.getsockname()
        settings = Settings(state=tmp_path, store=f"{host}:{port}", listen="127.0.0.1:0")
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(after_s, stop.set)
        async with asyncio.timeout(SOON_S):
            await service.run(settings, stop)
