"""The system's document: what is away is said, what is there is shown, and none of it is old."""

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import TemporaryError
from services.chassis.rpc import rpc
from services.gateway.page.api import system as api
from services.gateway.page.app import Page
from services.gateway.page.documents import system
from services.gateway.page.http.access import Access
from services.gateway.page.reads import Reads
from tests.gateway.page.conftest import client_of


async def test_a_store_and_a_broker_that_are_away_hide_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_PATIENCE_S", 0.05)
    (tmp_path / "processes.json").write_text(json.dumps([{"service": "learner", "state": "x"}]))

    async def broken() -> list[Any]:
        raise TemporaryError("the broker restarts")

    async def silent() -> list[Any]:
        await asyncio.sleep(30)
        return []

    for queues, words in ((broken, "the broker restarts"), (silent, "the broker does not answer")):
        channel = rpc.channel("127.0.0.1:9")
        page = Page(Reads(channel), Access(secret=""), tmp_path, queues=queues)
        async with client_of(page) as client:
            found = (await client.get("/api/system")).json()
        await channel.close(None)
        assert [process["service"] for process in found["processes"]] == ["learner"]
        no_store, no_broker = found["missing"]
        assert no_store == "the store does not answer within 0.05 s"
        assert no_broker.startswith(words)


async def test_many_pages_share_one_look_and_the_next_look_is_a_new_one(
    here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[dict[str, Any]] = []

    async def queues() -> list[dict[str, Any]]:
        looks.append({"waiting": len(looks)})
        return looks[-1:]

    page = Page(Reads(here.store.channel), Access(secret=""), tmp_path, queues=queues)
    async with client_of(page) as client:

        async def waiting() -> int:
            (queue,) = (await client.get("/api/system")).json()["queues"]
            return int(queue["waiting"])

        monkeypatch.setattr(api, "_FRESH_S", 60.0)
        assert await asyncio.gather(waiting(), waiting(), waiting()) == [0, 0, 0]
        monkeypatch.setattr(api, "_FRESH_S", 0.0)
        assert await waiting() == 1


def test_one_that_ended_and_was_not_waited_for_is_dead() -> None:
    ended = subprocess.Popen(["true"])
    try:
        end = time.monotonic() + 10
        while system.alive(ended.pid) and time.monotonic() < end:
            time.sleep(0.01)
        assert not system.alive(ended.pid), "a zombie passes for a process that runs"
    finally:
        ended.wait()
