"""The page of a whole run over real HTTP: live inside the gateway, and offline by `banyan page`."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.chassis.rpc import rpc
from services.gateway.page.api.endpoint import Endpoint
from services.gateway.page.app import Page
from services.gateway.page.http.access import Access
from services.gateway.page.reads import Reads
from tests.cli.command import ROOT, process
from tests.faults.harness import recipe, system, tiny_model
from tests.gateway.page.documented import Documented

pytestmark = pytest.mark.slow
SEEN_S = 3.0  # a killed service is shown as such within this


async def endpoints() -> list[Endpoint]:
    """Return what the page declares."""
    channel = rpc.channel("127.0.0.1:9")
    page = Page(Reads(channel), Access(secret=""), Path())
    await channel.close(None)
    return list(page.endpoints)


async def read_all(client: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    """Read every endpoint that reads; return the answers by path."""
    listed = (await client.get(f"/api/runs/{run_id}/trees?state=CONSUMED")).json()
    tree = listed["trees"][-1]["tree_id"]
    nodes = (await client.get(f"/api/trees/{tree}")).json()["nodes"]
    segment = next(n["segment"] for n in nodes if n["kind"] == "POLICY")
    values = {"run": run_id, "tree": tree, "segment": segment}
    answers: dict[str, Any] = {}
    declared = await endpoints()
    documented = Documented(declared)
    for endpoint in declared:
        path = endpoint.path.format(**values, letter=1)
        if endpoint.method != "GET":
            continue
        if endpoint.stream:
            events = await first_events(client, path)
            for name, data in events:
                documented.check_event(endpoint.path, name, data)
            answers[endpoint.path] = [name for name, _ in events]
            continue
        answer = await client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        answers[endpoint.path] = answer.json()
        documented.check(endpoint.path, answers[endpoint.path])
    return answers


async def first_events(client: httpx.AsyncClient, path: str) -> list[tuple[str, str]]:
    """Return names and data of a stream's events until it is over, or of the first one."""
    events: list[tuple[str, str]] = []
    name = ""
    async with client.stream("GET", path) as answer, asyncio.timeout(20):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            if line.startswith("data: "):
                events.append((name, line.removeprefix("data: ")))
                if len(events) == (2 if "trees" in path else 1):
                    break
    return events


async def until_served(client: httpx.AsyncClient) -> None:
    """Wait until the page answers: it starts behind the gateway's plain port."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(httpx.TransportError):
                await client.get("/api/openapi.json")
                return
            await asyncio.sleep(0.05)


async def processes(client: httpx.AsyncClient, service: str) -> list[dict[str, Any]]:
    found = (await client.get("/api/system")).json()["processes"]
    return [p for p in found if p["service"] == service]


async def killed_is_seen(here: Any, client: httpx.AsyncClient, service: str) -> None:
    """Kill a service; the page says so soon, and that it serves again."""
    os.kill(here.pid(service), signal.SIGKILL)
    began, before = time.monotonic(), {"ready"}
    states: list[str] = []
    async with asyncio.timeout(60):
        while not states or states[-1] != "ready" or set(states) == before:
            (row,) = await processes(client, service)
            states.append(row["state"])
            if set(states) == before:
                assert time.monotonic() - began < SEEN_S, "the page shows it as living"
            await asyncio.sleep(0.05)
    (row,) = await processes(client, service)
    assert row["restarts"] == 1 and row["health"] == "serves", row


@contextlib.asynccontextmanager
async def offline(state: Path, *more: str) -> AsyncIterator[str]:
    """Run `banyan page`; yield the address that it prints."""
    command = [sys.executable, "-m", "banyan.cli", "page", *more, "--no-open", "--state", state]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    page = await asyncio.create_subprocess_exec(
        *map(str, command), env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert page.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = (await page.stdout.readline()).decode()
        assert line.startswith("page http://"), line
        yield line.split()[1]
    finally:
        page.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            _, errors = await page.communicate()
        assert page.returncode == 0 and b"Traceback" not in errors, errors


async def test_a_run_is_read_live_and_afterwards(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with system(state) as here:
        address = f"http://{here.supervisor.fleet.state.address('page')}"
        secret = (state / "secret").read_text().strip()
        await here.create(recipe(tiny_model(tmp_path / "model"), budget__steps=400))
        async with httpx.AsyncClient(base_url=address, timeout=30) as client:
            await until_served(client)
            await here.reach(2)
            live = await read_all(client, here.run_id)
            assert live["/api/runs/{run}/events"] == ["news"]
            assert live["/api/trees/{tree}/events"] == ["tree", "over"]
            assert live["/api/runs/{run}"]["run"]["live"] and live["/api/runs/{run}"]["members"]
            assert {q["stream"] for q in live["/api/system"]["queues"]} >= {"LINEAGE", "GROWTH"}
            assert live["/api/trees/{tree}/segments/{segment}"]["lineage"]
            nodes = live["/api/trees/{tree}"]["nodes"]
            assert any(n["advantage"] is not None for n in nodes)
            shown = process("page", here.run_id[:-2], "--no-open", "--state", state)
            assert shown.stdout == f"page {address}/runs/{here.run_id}\n", shown
            await killed_is_seen(here, client, "verifier")
            await killed_is_seen(here, client, "treestore")
            await writes(client, here, secret)
    async with offline(state, here.run_id) as printed:
        assert printed == f"{address}/runs/{here.run_id}", "the folder's own port"
        async with httpx.AsyncClient(base_url=address, timeout=30) as client:
            stored = await read_all(client, here.run_id)
            for path in ("/api/trees/{tree}", "/api/runs/{run}/metrics"):
                assert stored[path].keys() == live[path].keys()
            assert stored["/api/runs/{run}"]["run"]["state"] == "CANCELLED"
            assert stored["/api/system"]["queues"] == []
            assert {p["state"] for p in stored["/api/system"]["processes"]} == {"stopped"}
            refused = await client.post(
                f"/api/runs/{here.run_id}/resume", headers={"Authorization": f"Bearer {secret}"}
            )
            assert refused.status_code == 409 and "nothing runs" in refused.text


async def writes(client: httpx.AsyncClient, here: Any, secret: str) -> None:
    """Pause, resume and cancel the run; refuse to remove what may go on; remove another."""
    token = {"Authorization": f"Bearer {secret}"}
    path = f"/api/runs/{here.run_id}"
    for body, state in (({"pause": True}, "PAUSED"), (None, ""), ({"pause": False}, "CANCELLED")):
        verb = "resume" if body is None else "cancel"
        assert (await client.post(f"{path}/{verb}", json=body or {})).status_code == 401
        if state == "CANCELLED":
            kept = await client.delete(path, headers=token)
            assert kept.status_code == 409 and kept.json()["error"]["reason"] == "RUN_LIVE"
        answer = await client.post(f"{path}/{verb}", json=body or {}, headers=token)
        assert answer.status_code == 200, answer.text
        assert answer.json()["run"]["state"] == state or not state
    first = here.run_id
    await here.create(
        recipe(Path(json.loads((await here.look()).run.recipe_json)["model"]), seed=7)
    )
    other, here.run_id = here.run_id, first
    await client.post(f"/api/runs/{other}/cancel", json={}, headers=token)
    folder = here.state / "runs" / other
    done = False
    async with asyncio.timeout(60):
        while not done:
            removed = await client.delete(f"/api/runs/{other}", headers=token)
            assert removed.status_code == 200, removed.text
            done = removed.json()["done"]
    assert (await client.get(f"/api/runs/{other}")).status_code == 404 and not folder.exists()
    missing = await client.post("/api/dead/1/replay", headers=token)
    assert missing.status_code == 404, missing.text
