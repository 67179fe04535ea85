"""Object stores against a real nats-server: complete or missing, compatible, resumable."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from banyan.errors import InvalidInput, NotFound, TemporaryError
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.objects import object_store as buckets
from services.chassis.messaging.objects.object_format import CHUNK_BYTES
from services.chassis.messaging.objects.object_store import Bucket
from services.chassis.process import nats_server as server_module

DATA = random.Random(0).randbytes(20 * CHUNK_BYTES + 777)
LIMIT = 64 << 20


def pieces(data: bytes, size: int = 300_000) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


async def whole(bucket: Bucket, name: str) -> bytes:
    return b"".join([chunk async for chunk in bucket.read(await bucket.find(name))])


async def subjects(bucket: Bucket) -> int:
    return len(await bucket._subjects())


@pytest_asyncio.fixture
async def bus(nats_server: Any) -> AsyncIterator[Bus]:
    made = await Bus.connect(nats_server.url, "test")
    yield made
    await made.close()


@pytest_asyncio.fixture
async def bucket(bus: Bus) -> Bucket:
    made = Bucket(bus.client, "weights-r-1")
    await made.ensure(LIMIT)
    return made


async def test_an_object_comes_back_with_its_labels(bucket: Bucket) -> None:
    put = await bucket.put("policy-1-2", pieces(DATA), {"step": "2"})
    assert put.size == len(DATA) and put.chunks == 21
    assert await bucket.find("policy-1-2") == put and await bucket.objects() == [put]
    assert await whole(bucket, "policy-1-2") == DATA
    for data in (b"", b"x", DATA[:CHUNK_BYTES]):
        await bucket.put("small", pieces(data), {})
        assert await whole(bucket, "small") == data


async def test_the_librarys_own_object_store_reads_it(bucket: Bucket, bus: Bus) -> None:
    await bucket.put("policy-1-2", pieces(DATA[:900_000]), {})
    native = await bus.client.jetstream().object_store("weights-r-1")
    assert (await native.get("policy-1-2")).data == DATA[:900_000]


async def test_nothing_is_seen_of_an_object_that_is_not_finished(bucket: Bucket) -> None:
    def broken() -> Iterator[bytes]:
        yield from pieces(DATA[: 3 * CHUNK_BYTES])
        raise ArithmeticError("the sender dies")

    with pytest.raises(ArithmeticError):
        await bucket.put("policy-1-2", broken(), {})
    with pytest.raises(NotFound):
        await bucket.find("policy-1-2")
    assert await subjects(bucket) == 0  # what was sent is gone too


async def test_what_a_killed_sender_left_is_cleared(bucket: Bucket, bus: Bus) -> None:
    kept = await bucket.put("policy-1-2", pieces(b"kept"), {})
    await bus.client.jetstream().publish("$O.weights-r-1.C.orphan", b"chunk")
    assert await subjects(bucket) == 3
    await bucket.drop_unfinished()
    assert await subjects(bucket) == 2 and await whole(bucket, "policy-1-2") == b"kept"
    other = await bucket.put("policy-2-2", pieces(b"other"), {})
    await bucket.keep_only([other])
    assert await bucket.objects() == [other] and await subjects(bucket) == 2
    assert kept != other


async def test_an_object_that_is_replaced_is_the_new_one_and_dropping_the_old_leaves_it(
    bucket: Bucket,
) -> None:
    old = await bucket.put("policy-1-2", pieces(b"old"), {})
    new = await bucket.put("policy-1-2", pieces(b"new"), {})
    await bucket.drop(old)
    assert await bucket.find("policy-1-2") == new and await whole(bucket, "policy-1-2") == b"new"
    assert await subjects(bucket) == 2
    await bucket.drop(new)
    assert await subjects(bucket) == 0
    with pytest.raises(NotFound):
        [_ async for _ in bucket.read(new)]


async def test_bytes_that_changed_are_refused(bucket: Bucket, bus: Bus) -> None:
    put = await bucket.put("policy-1-2", pieces(b"right"), {})
    js = bus.client.jetstream()
    await js.purge_stream(bucket.stream, subject=f"$O.weights-r-1.C.{put.nuid}")
    await js.publish(f"$O.weights-r-1.C.{put.nuid}", b"wrong")
    with pytest.raises(InvalidInput, match="other bytes"):
        await whole(bucket, "policy-1-2")
    await js.purge_stream(bucket.stream, subject=f"$O.weights-r-1.C.{put.nuid}")
    await js.publish(f"$O.weights-r-1.C.{put.nuid}", b"longer than said")
    with pytest.raises(InvalidInput, match="more than the 5 bytes"):
        await whole(bucket, "policy-1-2")


@pytest.mark.parametrize(
    "said",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"name":"x","nuid":"a.>","size":1,"chunks":1,"digest":"SHA-256="}',
        b'{"name":"x","nuid":"a","size":Infinity,"chunks":1,"digest":"SHA-256="}',
    ],
)
async def test_what_is_said_of_an_object_may_be_nonsense(
    bucket: Bucket, bus: Bus, said: bytes
) -> None:
    await bus.client.jetstream().publish(bucket._about("policy-1-2"), said)
    with pytest.raises(InvalidInput):
        await bucket.find("policy-1-2")


async def test_a_full_bucket_and_one_that_is_not_there_say_so(bucket: Bucket, bus: Bus) -> None:
    small = Bucket(bus.client, "weights-small-1")
    await small.ensure(2 * CHUNK_BYTES)
    with pytest.raises(TemporaryError, match="is full") as refused:
        await small.put("x", pieces(DATA), {})
    assert await subjects(small) == 0 and refused.value.reason == buckets.FULL == "STORE_FULL"
    with pytest.raises(NotFound):
        await Bucket(bus.client, "weights-none-1").find("x")
    assert sorted(await buckets.names(bus.client)) == ["weights-r-1", "weights-small-1"]
    await buckets.delete(bus.client, "weights-small-1")
    await buckets.delete(bus.client, "weights-small-1")
    assert await buckets.names(bus.client) == ["weights-r-1"]


async def test_a_broker_without_room_is_named(tmp_path: Any, bus: Bus) -> None:
    huge = Bucket(bus.client, "weights-huge-1")
    with pytest.raises(
        InvalidInput,
        match=r"no room for object store .* resources.weights: file, or, .* max_file_store",
    ):
        await huge.ensure(1 << 40)
    assert server_module.MAX_FILE_STORE == "16GB"


async def test_a_bucket_that_is_made_anew_has_another_birth(bucket: Bucket, bus: Bus) -> None:
    born = await bucket.ensure(LIMIT)
    assert await bucket.ensure(LIMIT) == born == await bucket.ensure(2 * LIMIT)
    await buckets.delete(bus.client, "weights-r-1")
    assert await bucket.ensure(LIMIT) != born


async def test_reading_goes_on_where_it_stopped_when_the_broker_is_killed(
    nats_server: Any, bucket: Bucket, monkeypatch: Any
) -> None:
    monkeypatch.setattr(buckets, "_TRY_S", 1.0)
    await bucket.put("policy-1-2", pieces(DATA), {})
    found, got = await bucket.find("policy-1-2"), []
    async for chunk in bucket.read(found):
        got.append(chunk)
        if len(got) == 16:  # as many as are asked for at a time
            nats_server.kill9()
            asyncio.get_running_loop().call_later(0.3, nats_server.restart)
    assert b"".join(got) == DATA


async def test_a_broker_that_stays_away_ends_the_wait(
    nats_server: Any, bucket: Bucket, monkeypatch: Any
) -> None:
    monkeypatch.setattr(buckets, "_TRY_S", 0.3)
    await bucket.put("policy-1-2", pieces(DATA), {})
    found = await bucket.find("policy-1-2")
    nats_server.kill9()
    with pytest.raises(TemporaryError, match="reading policy-1-2"):
        [_ async for _ in bucket.read(found, patience_s=0.5)]
    with pytest.raises(TemporaryError, match="sending x"):
        await bucket.put("x", pieces(os.urandom(10)), {})
