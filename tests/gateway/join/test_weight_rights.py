"""Object stores are closed to joined nodes, also by way of a reply subject."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.js.errors import Error as JetStreamError

from banyan.errors import BanyanError
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.objects import object_store as buckets
from services.chassis.messaging.objects.object_store import Bucket
from tests.gateway.join.test_credentials import RUN, Secured

DATA = bytes(range(256)) * 8000  # four chunks
MINE, OTHER = subjects.weights_bucket(RUN), subjects.weights_bucket("other-1")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    server = Secured(tmp_path)
    yield server
    server.process.terminate()
    server.process.wait(5)


async def _filled(secured: Secured) -> Bus:
    service = await secured.service()
    for name in (MINE, OTHER):
        bucket = Bucket(service.client, name)
        await bucket.ensure(8 << 20)
        await bucket.put("policy-1-0", iter([DATA]), {"step": "0"})
    return service


@pytest.mark.parametrize("name", [MINE, OTHER])
async def test_a_node_reads_no_bucket(secured: Secured, name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(buckets, "_TRY_S", 0.4)
    service, node = await _filled(secured), await secured.node()
    with pytest.raises(BanyanError):
        await Bucket(node.client, name).find("policy-1-0")
    await node.close()
    await service.close()


@pytest.mark.parametrize(
    "reply", [subjects.lineage(RUN, "opened"), f"$O.{MINE}.C.x", f"$O.{OTHER}.M.cG9saWN5LTEtMA=="]
)
async def test_a_read_with_a_reply_subject_writes_nothing_there(
    secured: Secured, reply: str
) -> None:
    """The broker would publish the answer to the reply subject, even if the sender may not."""
    service, node = await _filled(secured), await secured.node()
    js = service.client.jetstream()
    about = {"last_by_subj": Bucket(service.client, MINE)._about("policy-1-0")}
    heard = await service.client.subscribe(reply)
    await service.client.flush()
    before = [
        (await js.stream_info(s)).state.last_seq
        for s in (subjects.LINEAGE, f"OBJ_{MINE}", f"OBJ_{OTHER}")
    ]
    for request in (about, {"seq": 1, "batch": 4, "next_by_subj": f"$O.{MINE}.C.>"}):
        await node.client.publish(
            f"$JS.API.DIRECT.GET.OBJ_{MINE}", json.dumps(request).encode(), reply=reply
        )
        await node.client.flush()
    with pytest.raises(nats.errors.TimeoutError):
        await heard.next_msg(0.5)
    after = [
        (await js.stream_info(s)).state.last_seq
        for s in (subjects.LINEAGE, f"OBJ_{MINE}", f"OBJ_{OTHER}")
    ]
    assert after == before
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
        f"$JS.API.STREAM.MSG.GET.OBJ_{MINE}",
        f"$JS.API.STREAM.MSG.DELETE.OBJ_{MINE}",
        f"$JS.API.STREAM.INFO.OBJ_{MINE}",
        f"$JS.API.CONSUMER.CREATE.OBJ_{MINE}",
        f"$JS.API.DIRECT.GET.OBJ_{MINE}",
        f"$JS.API.DIRECT.GET.OBJ_{MINE}.$O.{MINE}.M.cG9saWN5LTEtMA==",
        f"$JS.API.DIRECT.GET.OBJ_{OTHER}",
        "$JS.API.DIRECT.GET.LINEAGE",
        "$JS.API.STREAM.NAMES",
        subjects.weights_wanted(RUN),
        subjects.weights_wanted("other-1"),
    ],
)
async def test_a_node_does_nothing_with_object_stores(secured: Secured, subject: str) -> None:
    service, node = await _filled(secured), await secured.node()
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
