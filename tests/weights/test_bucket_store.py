"""The weight store `nats`: small between whole versions, bounded, mended where it broke, never half there."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from banyan.errors import BanyanError, InvalidInput, NotFound, TemporaryError
from services.chassis.messaging import object_store as buckets
from services.chassis.weights import file
from services.learner.weights import object_store as outlets
from services.learner.weights import version_chain
from services.rollout.growth.policy_selection import Published
from services.rollout.weights.fetch import Weights
from tests.weights.stores import RUN, SLACK_BYTES, Learner, Site, site
from tests.weights.test_stores import gets


@pytest_asyncio.fixture
async def made(tmp_path: Path, nats_server: Any) -> AsyncIterator[Site]:
    async with site("nats", tmp_path, nats_server.url) as found:
        yield found


async def stored(made: Site) -> int:
    assert made.bucket is not None
    return int((await made.bucket._js.stream_info(made.bucket.stream)).state.bytes)


async def becomes(node: Weights, published: Published, learner: Learner, deadline_s: float = 20.0) -> list[str]:
    """Tries as a node does until it has the version; what it was told before that."""
    said = []
    async with asyncio.timeout(deadline_s):
        while True:
            try:
                await gets(node, published, learner)
                return said
            except BanyanError as error:
                said.append(str(error))
            await asyncio.sleep(0.05)


async def test_what_changed_is_a_hundredth_of_what_is_there(made: Site) -> None:
    sizes, whole = [], []
    for _ in range(9):
        published = await made.learner.publish(moves=0.01)
        sizes.append(made.learner.told["weights_sent_bytes"])
        whole.append(made.learner.told["weights_whole"])
    assert whole == [1, 0, 0, 0, 1, 0, 0, 0, 1]  # every fourth
    assert all(size < 0.009 * published.bytes for size, w in zip(sizes, whole, strict=True) if not w)
    assert made.learner.told["weights_changed"] == 1.0


async def test_where_all_changed_whole_versions_are_sent(made: Site) -> None:
    for _ in range(3):
        made.learner.tensors["a"].normal_()
        published = await made.learner.publish(moves=1.0)
        assert made.learner.told["weights_whole"] == 1 and made.learner.told["weights_sent_bytes"] >= published.bytes
    await gets(made.node(), published, made.learner)


@pytest.mark.parametrize("moves", [0.001, 0.1, 0.6, 1.0])
async def test_the_store_stays_within_its_bytes(made: Site, moves: float, caplog: Any) -> None:
    most = 0
    for number in range(20):
        if moves == 1.0 or (number % 3 == 0 and moves == 0.6):
            made.learner.tensors["a"].normal_()
        published = await made.learner.publish(moves)
        most = max(most, await stored(made))
    assert most < 3.6 * published.bytes < version_chain.limit_bytes(published.bytes, SLACK_BYTES) < 5 * published.bytes
    assert "is full" not in caplog.text and "not removed" not in caplog.text


async def whole_ones(learner: Learner, count: int) -> list[Published]:
    made = []
    for _ in range(count):
        learner.tensors["a"].normal_()
        made.append(await learner.publish(moves=1.0))
    return made


async def test_a_full_store_is_cleared_by_the_next_learner(made: Site, monkeypatch: Any, caplog: Any) -> None:
    async def kept(*words: Any) -> None:
        """A learner that dies before it lets older versions go."""

    monkeypatch.setattr(made.learner.outlet, "_forget", kept)
    await whole_ones(made.learner, 4)
    second = made.successor()
    (published,) = await whole_ones(second, 1)
    assert "is full" in caplog.text and made.bucket is not None
    assert [one.name for one in await made.bucket.objects()] == ["policy-2-0"]
    await gets(made.node(), published, second)


async def test_what_could_not_be_removed_is_removed_later(made: Site, monkeypatch: Any, caplog: Any) -> None:
    async def away(*words: Any) -> None:
        raise TemporaryError("NATS is away")

    assert made.bucket is not None
    monkeypatch.setattr(made.bucket, "drop", away)
    await whole_ones(made.learner, 4)
    assert len(await made.bucket.objects()) == 4 and "not removed: NATS is away" in caplog.text
    await whole_ones(made.learner, 1)  # full: all but the newest three go, and it fits
    assert "is full" in caplog.text and len(await made.bucket.objects()) == 4
    monkeypatch.undo()
    await gets(made.node(), (await whole_ones(made.learner, 1))[0], made.learner)
    assert sorted(one.name for one in await made.bucket.objects()) == ["policy-1-3", "policy-1-4", "policy-1-5"]


async def test_a_whole_version_that_cannot_be_read_is_said_and_asked_for_less(
    made: Site, monkeypatch: Any, caplog: Any
) -> None:
    published, tried = await made.learner.publish(), 0
    outlet: Any = made.learner.outlet

    async def broken(*words: Any, **more: Any) -> None:
        nonlocal tried
        tried += 1
        await asyncio.sleep(0.1)
        raise OSError(12, "cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(outlet, "_send", broken)
        for _ in range(20):
            await made.node()._rebuilder._request_whole(published, "it is not there\nERROR forged")
        async with asyncio.timeout(10.0):
            while "are not sent whole" not in caplog.text:
                await asyncio.sleep(0.02)
    assert "cannot allocate memory" in caplog.text and "it is not there ERROR forged" in caplog.text
    assert tried == 1
    outlet._not_before = 0.0
    assert made.bucket is not None
    await made.bucket.drop(await made.bucket.find("policy-1-0"))
    await becomes(made.node(), published, made.learner)  # it answers still


async def test_a_link_that_is_missing_is_asked_for_and_comes_whole(made: Site) -> None:
    published = [await made.learner.publish() for _ in range(3)]
    assert made.bucket is not None
    await made.bucket.drop(await made.bucket.find("policy-1-1"))
    said = await becomes(made.node(), published[-1], made.learner)
    assert said and "does not hold policy-1-1" in said[0]
    assert (await made.bucket.find("policy-1-2")).labels.keys() == {"epoch", "step", "digest"}
    await gets(made.node(), await made.learner.publish(), made.learner)  # and the chain goes on from there
    assert made.learner.told["weights_whole"] == 0


async def test_a_link_that_is_wrong_is_never_loaded_and_comes_whole(made: Site) -> None:
    """The object of the newest version gives other bytes, with a SHA-256 that fits: only the policy's digest tells."""
    node, published = made.node(), [await made.learner.publish() for _ in range(3)]
    await gets(node, published[2], made.learner)
    newest = await made.learner.publish()
    assert made.bucket is not None
    found = await made.bucket.find("policy-1-3")
    data = bytearray(b"".join([chunk async for chunk in made.bucket.read(found)]))
    data[-40] ^= 1
    await made.bucket.put("policy-1-3", iter([bytes(data)]), found.labels)
    said = await becomes(node, newest, made.learner)
    assert said and any(word in said[0] for word in ("rebuild to", "inflated", "block")), said
    assert not list(node._folder.glob("*.rebuilt"))


async def test_weights_at_hand_that_were_damaged_are_not_built_upon(made: Site) -> None:
    node = made.node()
    first = await made.learner.publish()
    async with node.held(first) as path:
        data = bytearray(path.with_suffix(".bin").read_bytes())
    data[1000] ^= 1
    path.with_suffix(".bin").write_bytes(bytes(data))
    said = await becomes(node, await made.learner.publish(), made.learner)
    assert "rebuild to" in said[0]


async def test_labels_that_lie_are_refused(made: Site) -> None:
    published = [await made.learner.publish() for _ in range(2)]
    assert made.bucket is not None
    found = await made.bucket.find("policy-1-1")
    data = b"".join([chunk async for chunk in made.bucket.read(found)])
    node = made.node()
    whole = {k: v for k, v in found.labels.items() if not k.startswith("parent")}
    for labels, message in (
        (whole, "labels do not name"),
        ({**found.labels, "parent_step": "1"}, "cannot follow"),
        ({**found.labels, "digest": "00"}, "no version of weights"),
        ({}, "no version of weights"),
        ({**found.labels, "step": "0", "parent_step": "-1"}, "not those of its name"),
    ):
        await made.bucket.put("policy-1-1", iter([data]), labels)
        with pytest.raises((InvalidInput, NotFound), match=message):
            await node._rebuilder._write(published[1], node._folder.with_suffix(".x"), {})


async def test_a_broker_that_lost_everything_gets_the_newest_whole(made: Site) -> None:
    published = [await made.learner.publish() for _ in range(2)][-1]
    assert made.bus is not None
    await buckets.delete(made.bus.client, f"weights-{RUN}")
    assert await becomes(made.node(), published, made.learner)
    await buckets.delete(made.bus.client, f"weights-{RUN}")
    await gets(made.node(), await made.learner.publish(), made.learner)
    assert made.learner.told["weights_whole"] == 1


async def test_a_node_fetches_from_the_learner_only_where_it_may(made: Site, caplog: Any) -> None:
    first = await made.learner.publish()
    made.learner.outlet._newest = None  # a learner that does not answer
    assert made.bucket is not None
    await made.bucket.drop(await made.bucket.find("policy-1-0"))
    with pytest.raises(NotFound, match="does not hold policy-1-0"):
        await gets(made.node(), first, made.learner)
    await gets(made.node(fallback=True), first, made.learner)
    assert "fetching it from the learner, as resources.weights_fallback says" in caplog.text


async def test_an_end_of_the_answers_is_said(made: Site, monkeypatch: Any, caplog: Any) -> None:
    async def broken(*words: Any) -> AsyncIterator[None]:
        raise ArithmeticError("not foreseen")
        yield

    monkeypatch.setattr(outlets.notices, "subscribe", broken)
    recipe: Any = SimpleNamespace(resources=SimpleNamespace(weights="nats", weights_base_every=4))
    assert made.bus is not None
    async with outlets.handing_out(recipe, made.bus, "run-2", asyncio.Event()), asyncio.timeout(10.0):
        while "get no answer any more: ArithmeticError: not foreseen" not in caplog.text:
            await asyncio.sleep(0.01)


async def test_a_broker_that_is_killed_while_weights_go_out(made: Site, nats_server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(buckets, "_TRY_S", 1.0)
    await made.learner.publish()
    made.learner.tensors["a"].normal_()
    sending = asyncio.create_task(made.learner.publish(moves=1.0))
    await asyncio.sleep(0.01)
    nats_server.kill9()
    await asyncio.sleep(0.2)
    nats_server.restart()
    published = await sending
    assert await becomes(made.node(), published, made.learner) == []


async def test_a_learner_that_is_told_to_stop_does_not_wait_for_a_broker_that_is_gone(made: Site, nats_server: Any) -> None:
    outlet = made.learner.outlet
    assert isinstance(outlet, outlets.ObjectStoreWeights)
    nats_server.kill9()
    outlet._stop.set()
    async with asyncio.timeout(15.0):  # of a patience of 20 s
        with pytest.raises(TemporaryError, match="NATS"):
            await made.learner.publish()


async def test_a_learner_that_dies_while_it_sends_leaves_nothing_that_is_seen(made: Site, monkeypatch: Any) -> None:
    first = await made.learner.publish()
    made.learner.tensors["a"].normal_()
    assert made.bucket is not None
    sent = 0
    client = made.bucket._client
    publish = client.publish

    async def dies(*words: Any, **more: Any) -> Any:
        nonlocal sent
        sent += words[0].startswith("$O.")
        if sent == 3:
            raise asyncio.CancelledError  # kill -9 leaves what was sent
        return await publish(*words, **more)

    async def kept(*words: Any, **more: Any) -> None:
        raise OSError("dead men purge nothing")

    monkeypatch.setattr(client, "publish", dies)
    monkeypatch.setattr(made.bucket._js, "purge_stream", kept)
    with pytest.raises(asyncio.CancelledError):
        await made.learner.publish(moves=1.0)
    monkeypatch.undo()
    assert [one.name for one in await made.bucket.objects()] == ["policy-1-0"]
    left = await stored(made)
    async with made.node().held(first) as path:
        assert file.open_verified(path).digest == first.policy.digest
    second = made.successor()
    published = await second.publish()
    await second.outlet.settle()
    await gets(made.node(), published, second)
    assert [one.name for one in await made.bucket.objects()] == ["policy-2-0"] and await stored(made) < left


async def test_asking_again_and_again_sends_no_more_than_a_tenth_of_the_time(made: Site) -> None:
    published = await made.learner.publish()
    node, sent = made.node(), 0
    assert made.bucket is not None
    put = made.bucket.put

    async def counted(*words: Any) -> Any:
        nonlocal sent
        sent += 1
        return await put(*words)

    made.bucket.put = counted  # type: ignore[method-assign]
    for _ in range(200):
        await node._rebuilder._request_whole(published, "I say so")
    await asyncio.sleep(0.2)
    assert 1 <= sent <= 5
