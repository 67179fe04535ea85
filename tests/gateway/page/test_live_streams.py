"""Live streams over HTTP: a run's news, a tree that grows, readers that are slow or leave."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc import rpc
from services.gateway.page.http import sender, streams
from services.gateway.page.http.streams import Event
from tests.gateway.page.conftest import on_a_port, step
from tests.gateway.page.made_trees import branches

pytestmark = pytest.mark.usefixtures("fast_looks")


@contextlib.asynccontextmanager
async def followed(client: httpx.AsyncClient, path: str, **more: Any) -> AsyncIterator[Any]:
    """Yield a function that waits for the next event: name, document and id."""
    async with client.stream("GET", path, **more) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()

        async def event() -> tuple[str, Any, str]:
            fields: dict[str, str] = {}
            async with asyncio.timeout(15):
                while line := await anext(lines):
                    name, _, value = line.partition(": ")
                    fields[name] = value
            return fields["event"], json.loads(fields["data"]), fields.get("id", "")

        yield event


async def test_a_runs_news_have_each_step_once(here: Any) -> None:
    run = here.store.forge.run_id
    for number in range(3):
        await step(here, number)
    async with (
        on_a_port(here.page) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
        followed(client, f"/api/runs/{run}/events") as event,
        followed(client, f"/api/runs/{run}/events?after=1") as later,
        followed(
            client, f"/api/runs/{run}/events?after=0", headers={"Last-Event-ID": "2"}
        ) as again,
    ):
        name, news, last = await event()
        assert (name, last) == ("news", "2") and [s["step"] for s in news["steps"]] == [1, 2]
        assert news["steps"][1] == {"step": 2, "kl": None, "reward": 0.2}
        assert news["run"]["run_id"] == run and news["recipe"]["name"] == "page"
        assert [s["step"] for s in (await later())[1]["steps"]] == [2]
        assert (await again())[1]["steps"] == []
        await step(here, 3)
        for each in (event, later, again):
            name, news, last = await each()
            assert (name, last) == ("news", "3") and [s["step"] for s in news["steps"]] == [3]
        move = rs.MoveRunRequest(
            run_id=run,
            from_state=rs.RUN_STATE_TRAINING,
            to_state=rs.RUN_STATE_CANCELLED,
            gateway_epoch=1,
        )
        await rpc.call(here.store.runs.MoveRun, move)
        assert (await event())[1]["run"]["state"] == "CANCELLED"
        assert (await event())[0] == "over"


async def test_steps_after_the_largest_one_are_none(here: Any) -> None:
    await step(here, 1)
    path = f"/api/runs/{here.store.forge.run_id}/events"
    async with (
        on_a_port(here.page) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        for after, steps in ((0, [1]), (1, []), (2**32 - 1, [])):
            async with followed(client, f"{path}?after={after}") as event:
                _, news, _ = await event()
            assert [each["step"] for each in news["steps"]] == steps


async def test_a_tree_grows_before_the_readers_eyes(here: Any) -> None:
    forge = here.store.forge
    spec = forge.spec()
    await here.store.publish(forge.opened(spec))
    epoch = await here.store.claim(spec.tree_id)
    root = forge.root(spec)
    first, second = branches(forge, root, (2, 2))
    async with (
        on_a_port(here.page) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
        followed(client, f"/api/trees/{spec.tree_id.hex()}/events") as event,
    ):
        name, tree, _ = await event()
        assert name == "tree" and tree["state"] == "GROWING" and tree["nodes"] == []
        await here.store.publish(forge.segments(root, *first, epoch=epoch))
        while len(tree["nodes"]) < 3:
            name, tree, revision = await event()
        assert [node["leaf"] for node in tree["nodes"]] == [None] * 3  # branches that run
        assert tree["revision"] == revision and "still grows" in tree["advantage_note"]
        await here.store.publish(
            forge.segments(*second, epoch=epoch),
            *(forge.leaf(leaf, epoch=epoch) for leaf in second),
            forge.grown(spec.tree_id, *second, epoch=epoch),
            *(forge.score(leaf, float(i)) for i, leaf in enumerate(second)),
        )
        while name != "over":
            name, document, _ = await event()
            tree = document if name == "tree" else tree
        assert tree["state"] == "CLOSED" and tree["reward_mean"] == 1.5
        assert [node["leaf"] is None for node in tree["nodes"]].count(False) == 4
        assert tree["advantage_note"] is None
        assert all(n["advantage"] is not None for n in tree["nodes"] if n["kind"] == "POLICY")
        known = {"Last-Event-ID": tree["revision"]}
        path = f"/api/trees/{spec.tree_id.hex()}/events"
        async with followed(client, path, headers=known) as again:
            assert (await again())[0] == "over"  # it has the tree as it is


async def test_a_stream_of_nothing_is_an_error(here: Any) -> None:
    await here.get("/api/runs/none/events", 404)
    await here.get(f"/api/trees/{'ab' * 32}/events", 404)
    head = await here.client.head(f"/api/runs/{here.store.forge.run_id}/events")
    assert head.status_code == 200 and here.page.hub.streams == 0


async def test_a_slow_reader_is_cut_and_its_place_is_free(
    here: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    """It takes the beginning and then nothing, while each event is half a megabyte."""
    monkeypatch.setattr(sender, "WRITE_S", 0.3)
    run, hub = here.store.forge.run_id, here.page.hub

    async def large(*_: Any) -> list[Event]:
        return [Event("news", json.dumps("x" * (1 << 19)).encode())]

    monkeypatch.setattr("services.gateway.page.sources.RunSource.poll", large)
    async with on_a_port(here.page) as address:
        host, _, port = address.partition(":")
        slow = socket.create_connection((host, int(port)))
        slow.sendall(f"GET /api/runs/{run}/events HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        await eventually(lambda: hub.streams == 1, what="the stream began")
        await eventually(lambda: hub.streams == 0, what="the slow reader is cut")
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/api/runs")).status_code == 200
        await eventually(lambda: not _held(int(port)), what="what it does not take is dropped")
        slow.setblocking(False)
        await eventually(lambda: _ended(slow), what="its connection is dropped")


def _held(port: int) -> list[str]:
    """Return the connections of a server that are open, with bytes that nobody takes."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    mine = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
    return [row[2] for row in mine if not row[4].startswith("0" * 8)]


def _ended(connection: socket.socket) -> bool:
    """Read what the kernel still has; return whether the other side has ended it."""
    try:
        while connection.recv(1 << 20):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def test_a_reader_that_leaves_gives_its_place_back(here: Any, eventually: Any) -> None:
    run, hub = here.store.forge.run_id, here.page.hub
    async with (
        on_a_port(here.page) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        async with followed(client, f"/api/runs/{run}/events") as event:
            await event()
            assert hub.streams == 1
        await eventually(lambda: hub.streams == 0)
        open_streams = contextlib.AsyncExitStack()
        async with open_streams:
            for _ in range(streams.MOST_STREAMS):
                another = await open_streams.enter_async_context(httpx.AsyncClient())
                path = f"http://{address}/api/runs/{run}/events"
                await (await open_streams.enter_async_context(followed(another, path)))()
            refused = await client.get(f"/api/runs/{run}/events")
            assert refused.status_code == 503 and "32 live streams" in refused.text
            assert (await client.get("/api/runs")).status_code == 200


async def test_the_end_of_the_server_ends_streams_soon(here: Any) -> None:
    run = here.store.forge.run_id
    client = httpx.AsyncClient()
    async with asyncio.timeout(10):
        async with on_a_port(here.page) as address:
            stream = client.stream("GET", f"http://{address}/api/runs/{run}/events")
            answer = await stream.__aenter__()
            lines = answer.aiter_lines()
            await anext(lines)
    with contextlib.suppress(httpx.RemoteProtocolError):
        async for _ in lines:
            pass
    await stream.__aexit__(None, None, None)
    await client.aclose()
