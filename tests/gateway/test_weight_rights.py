"""What a joined node may do with its run's object store: read it and ask for a whole version, where the recipe says nats."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.js.errors import Error as JetStreamError

from banyan.errors import BanyanError
from banyan.v1 import events_pb2
from services.chassis import bucket as buckets
from services.chassis import hints, subjects
from services.chassis.bucket import Bucket
from services.chassis.bus import Bus
from services.gateway.join import tls
from tests.gateway.test_credentials import RUN, SCOPE, Secured

DATA = bytes(range(256)) * 8000  # four chunks
MINE, OTHER = subjects.weights_bucket(RUN), subjects.weights_bucket("other-1")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    server = Secured(tmp_path)
    yield server
    server.process.terminate()
    server.process.wait(5)


async def _node(secured: Secured, weights: bool = True) -> Bus:
    return await Bus.connect(
        f"tls://{secured.address}",
        "node",
        creds=secured.node_creds(dataclasses.replace(SCOPE, weights=weights)),
        inbox_prefix=SCOPE.inbox_prefix,
        tls_root=str(secured.identity.certificate),
        tls_name=tls.NAME,
        patience_s=5.0,
    )


async def _filled(secured: Secured) -> Bus:
    service = await secured.service()
    for name in (MINE, OTHER):
        made = Bucket(service.client, name)
        await made.ensure(8 << 20)
        await made.put("policy-1-0", iter([DATA]), {"step": "0"})
    return service


async def test_a_node_reads_its_runs_weights_and_asks(secured: Secured) -> None:
    service, node = await _filled(secured), await _node(secured)
    mine = Bucket(node.client, MINE)
    found = await mine.find("policy-1-0")
    assert b"".join([chunk async for chunk in mine.read(found)]) == DATA
    asked = hints.heard(service.client, subjects.weights_wanted(RUN), events_pb2.WeightsWanted)
    hearing = asyncio.ensure_future(anext(asked))
    async with asyncio.timeout(5.0):
        while not hearing.done():
            await hints.say(node.client, subjects.weights_wanted(RUN), events_pb2.WeightsWanted(node_id="node-1"))
            await asyncio.sleep(0.05)
    assert hearing.result().node_id == "node-1"
    await asked.aclose()  # type: ignore[attr-defined]
    await node.close()
    await service.close()


@pytest.mark.parametrize("name", [MINE, OTHER])
async def test_a_node_of_a_run_with_files_reads_no_bucket(secured: Secured, name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(buckets, "_TRY_S", 0.4)
    service, node = await _filled(secured), await _node(secured, weights=False)
    with pytest.raises(BanyanError):
        await Bucket(node.client, name).find("policy-1-0")
    await node.close()
    await service.close()


async def test_a_node_reads_no_other_runs_weights(secured: Secured, monkeypatch: Any) -> None:
    monkeypatch.setattr(buckets, "_TRY_S", 0.4)
    service, node = await _filled(secured), await _node(secured)
    with pytest.raises(BanyanError):
        await Bucket(node.client, OTHER).find("policy-1-0")
    await node.close()
    await service.close()


@pytest.mark.parametrize(
    "subject",
    [
        f"$O.{MINE}.C.x",
        f"$O.{MINE}.M.cG9saWN5LTEtMA==",
        f"$O.{OTHER}.C.x",
        f"$JS.API.STREAM.DELETE.OBJ_{MINE}",
        f"$JS.API.STREAM.PURGE.OBJ_{MINE}",
        f"$JS.API.STREAM.UPDATE.OBJ_{MINE}",
        f"$JS.API.STREAM.MSG.DELETE.OBJ_{MINE}",
        f"$JS.API.STREAM.INFO.OBJ_{MINE}",
        f"$JS.API.CONSUMER.CREATE.OBJ_{MINE}",
        f"$JS.API.DIRECT.GET.OBJ_{OTHER}",
        "$JS.API.DIRECT.GET.LINEAGE",
        "$JS.API.STREAM.NAMES",
        subjects.weights_wanted("other-1"),
    ],
)
async def test_a_node_does_nothing_else_with_object_stores(secured: Secured, subject: str) -> None:
    service, node = await _filled(secured), await _node(secured)
    heard = await service.client.subscribe(subject)
    await service.client.flush()
    with pytest.raises((nats.errors.Error, JetStreamError, asyncio.TimeoutError)):
        await node.client.request(subject, b"{}", timeout=0.4)
    await service.client.flush()
    assert heard.pending_msgs == 0
    for name in (MINE, OTHER):
        kept = Bucket(service.client, name)
        assert b"".join([c async for c in kept.read(await kept.find("policy-1-0"))]) == DATA
    await node.close()
    await service.close()
