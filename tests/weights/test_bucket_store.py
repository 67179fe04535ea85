"""The weight store `nats`: small changes, bounded size, repair, no partial versions."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from banyan.errors import BanyanError, InvalidInput, NotFound, TemporaryError
from services.chassis.messaging.objects import object_store as buckets
from services.chassis.weights import file
from services.learner.weights import object_store as outlets
from services.learner.weights import version_chain
from services.rollout.growth.policy_selection import Published
from services.rollout.weights.fetch import Weights
from tests.weights.stores import RUN, SLACK_BYTES, Learner, Site, site
from tests.weights.test_stores import gets


@pytest_asyncio.fixture
async def store_site(tmp_path: Path, nats_server: Any) -> AsyncIterator[Site]:
    async with site("nats", tmp_path, nats_server.url) as opened:
        yield opened


async def stored(store_site: Site) -> int:
    assert store_site.bucket is not None
    return int((await store_site.bucket._js.stream_info(store_site.bucket.stream)).state.bytes)


async def becomes(
    node: Weights, published: Published, learner: Learner, deadline_s: float = 20.0
) -> list[str]:
    """Retry as a node does until it has the version; return the errors before that."""
    errors = []
    async with asyncio.timeout(deadline_s):
        while True:
            try:
                await gets(node, published, learner)
                return errors
            except BanyanError as error:
                errors.append(str(error))
            await asyncio.sleep(0.05)


async def test_what_changed_is_a_hundredth_of_what_is_there(store_site: Site) -> None:
    sizes, whole = [], []
    for _ in range(9):
        published = await store_site.learner.publish(moves=0.01)
        sizes.append(store_site.learner.metrics["weights_sent_bytes"])
        whole.append(store_site.learner.metrics["weights_whole"])
    assert whole == [1, 0, 0, 0, 1, 0, 0, 0, 1]  # every fourth
    assert all(
        size < 0.009 * published.bytes for size, w in zip(sizes, whole, strict=True) if not w
    )
    assert store_site.learner.metrics["weights_changed"] == 1.0


async def test_where_all_changed_whole_versions_are_sent(store_site: Site) -> None:
    for _ in range(3):
        store_site.learner.tensors["a"].normal_()
        published = await store_site.learner.publish(moves=1.0)
        assert (
            store_site.learner.metrics["weights_whole"] == 1
            and store_site.learner.metrics["weights_sent_bytes"] >= published.bytes
        )
    await gets(store_site.node(), published, store_site.learner)


@pytest.mark.parametrize("moves", [0.001, 0.1, 0.6, 1.0])
async def test_the_store_stays_within_its_bytes(
    store_site: Site, moves: float, caplog: Any
) -> None:
    most = 0
    for number in range(20):
        if moves == 1.0 or (number % 3 == 0 and moves == 0.6):
            store_site.learner.tensors["a"].normal_()
        published = await store_site.learner.publish(moves)
        most = max(most, await stored(store_site))
    assert (
        most
        < 3.6 * published.bytes
        < version_chain.limit_bytes(published.bytes, SLACK_BYTES)
        < 5 * published.bytes
    )
    assert "is full" not in caplog.text and "not removed" not in caplog.text


async def whole_ones(learner: Learner, count: int) -> list[Published]:
    store_site = []
    for _ in range(count):
        learner.tensors["a"].normal_()
        store_site.append(await learner.publish(moves=1.0))
    return store_site


async def test_a_full_store_is_cleared_by_the_next_learner(
    store_site: Site, monkeypatch: Any, caplog: Any
) -> None:
    async def kept(*words: Any) -> None:
        """Remove nothing, as a learner that dies first."""

    monkeypatch.setattr(store_site.learner.outlet, "_remove", kept)
    await whole_ones(store_site.learner, 4)
    second = store_site.successor()
    (published,) = await whole_ones(second, 1)
    assert "is full" in caplog.text and store_site.bucket is not None
    assert [one.name for one in await store_site.bucket.objects()] == ["policy-2-0"]
    await gets(store_site.node(), published, second)


async def test_what_could_not_be_removed_is_removed_later(
    store_site: Site, monkeypatch: Any, caplog: Any
) -> None:
    async def away(*words: Any) -> None:
        raise TemporaryError("NATS is away")

    assert store_site.bucket is not None
    monkeypatch.setattr(store_site.bucket, "drop", away)
    await whole_ones(store_site.learner, 4)
    assert (
        len(await store_site.bucket.objects()) == 4 and "not removed: NATS is away" in caplog.text
    )
    await whole_ones(store_site.learner, 1)  # full: all but the newest three go, and it fits
    assert "is full" in caplog.text and len(await store_site.bucket.objects()) == 4
    monkeypatch.undo()
    await gets(store_site.node(), (await whole_ones(store_site.learner, 1))[0], store_site.learner)
    assert sorted(one.name for one in await store_site.bucket.objects()) == [
        "policy-1-3",
        "policy-1-4",
        "policy-1-5",
    ]


async def test_a_whole_version_that_cannot_be_read_is_said_and_asked_for_less(
    store_site: Site, monkeypatch: Any, caplog: Any
) -> None:
    published, tried = await store_site.learner.publish(), 0
    outlet: Any = store_site.learner.outlet

    async def broken(*words: Any, **more: Any) -> None:
        nonlocal tried
        tried += 1
        await asyncio.sleep(0.1)
        raise OSError(12, "cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(outlet, "_send", broken)
        for _ in range(20):
            rebuilder = store_site.node()._rebuilder
            await rebuilder._request_whole(published, "it is not there\nERROR forged")
        async with asyncio.timeout(10.0):
            while "are not sent whole" not in caplog.text:
                await asyncio.sleep(0.02)
    assert "cannot allocate memory" in caplog.text and "it is not there ERROR forged" in caplog.text
    assert tried == 1
    outlet._not_before = 0.0
    assert store_site.bucket is not None
    await store_site.bucket.drop(await store_site.bucket.find("policy-1-0"))
    await becomes(store_site.node(), published, store_site.learner)  # it answers still


async def test_a_link_that_is_missing_is_asked_for_and_comes_whole(store_site: Site) -> None:
    published = [await store_site.learner.publish() for _ in range(3)]
    assert store_site.bucket is not None
    await store_site.bucket.drop(await store_site.bucket.find("policy-1-1"))
    errors = await becomes(store_site.node(), published[-1], store_site.learner)
    assert errors and "does not hold policy-1-1" in errors[0]
    assert (await store_site.bucket.find("policy-1-2")).labels.keys() == {"epoch", "step", "digest"}
    newest = await store_site.learner.publish()  # the chain goes on from there
    await gets(store_site.node(), newest, store_site.learner)
    assert store_site.learner.metrics["weights_whole"] == 0


async def test_a_link_that_is_wrong_is_never_loaded_and_comes_whole(store_site: Site) -> None:
    """Other bytes with a fitting SHA-256 are detected by the policy's digest."""
    node, published = store_site.node(), [await store_site.learner.publish() for _ in range(3)]
    await gets(node, published[2], store_site.learner)
    newest = await store_site.learner.publish()
    assert store_site.bucket is not None
    newest_object = await store_site.bucket.find("policy-1-3")
    data = bytearray(b"".join([chunk async for chunk in store_site.bucket.read(newest_object)]))
    data[-40] ^= 1
    await store_site.bucket.put("policy-1-3", iter([bytes(data)]), newest_object.labels)
    errors = await becomes(node, newest, store_site.learner)
    assert errors and any(word in errors[0] for word in ("rebuild to", "inflated", "block")), errors
    assert not list(node._folder.glob("*.rebuilt"))


async def test_weights_at_hand_that_were_damaged_are_not_built_upon(store_site: Site) -> None:
    node = store_site.node()
    first = await store_site.learner.publish()
    async with node.held(first) as path:
        data = bytearray(path.with_suffix(".bin").read_bytes())
    data[1000] ^= 1
    path.with_suffix(".bin").write_bytes(bytes(data))
    errors = await becomes(node, await store_site.learner.publish(), store_site.learner)
    assert "rebuild to" in errors[0]


async def test_labels_that_lie_are_refused(store_site: Site) -> None:
    published = [await store_site.learner.publish() for _ in range(2)]
    assert store_site.bucket is not None
    newest_object = await store_site.bucket.find("policy-1-1")
    data = b"".join([chunk async for chunk in store_site.bucket.read(newest_object)])
    node = store_site.node()
    whole = {k: v for k, v in newest_object.labels.items() if not k.startswith("parent")}
    for labels, message in (
        (whole, "labels do not name"),
        ({**newest_object.labels, "parent_step": "1"}, "cannot follow"),
        ({**newest_object.labels, "digest": "00"}, "no version of weights"),
        ({}, "no version of weights"),
        ({**newest_object.labels, "step": "0", "parent_step": "-1"}, "not those of its name"),
    ):
        await store_site.bucket.put("policy-1-1", iter([data]), labels)
        with pytest.raises((InvalidInput, NotFound), match=message):
            await node._rebuilder._write(published[1], node._folder.with_suffix(".x"), {})


async def test_a_broker_that_lost_everything_gets_the_newest_whole(store_site: Site) -> None:
    published = [await store_site.learner.publish() for _ in range(2)][-1]
    assert store_site.bus is not None
    await buckets.delete(store_site.bus.client, f"weights-{RUN}")
    assert await becomes(store_site.node(), published, store_site.learner)
    await buckets.delete(store_site.bus.client, f"weights-{RUN}")
    await gets(store_site.node(), await store_site.learner.publish(), store_site.learner)
    assert store_site.learner.metrics["weights_whole"] == 1


async def test_a_node_fetches_from_the_learner_only_where_it_may(
    store_site: Site, caplog: Any
) -> None:
    first = await store_site.learner.publish()
    store_site.learner.outlet._newest = None  # a learner that does not answer
    assert store_site.bucket is not None
    await store_site.bucket.drop(await store_site.bucket.find("policy-1-0"))
    with pytest.raises(NotFound, match="does not hold policy-1-0"):
        await gets(store_site.node(), first, store_site.learner)
    await gets(store_site.node(fallback=True), first, store_site.learner)
    assert "fetching it from the learner, as resources.weights_fallback says" in caplog.text


async def test_an_end_of_the_answers_is_said(
    store_site: Site, monkeypatch: Any, caplog: Any
) -> None:
    async def broken(*words: Any) -> AsyncIterator[None]:
        raise ArithmeticError("not foreseen")
        yield

    monkeypatch.setattr(outlets.notices, "subscribe", broken)
    recipe: Any = SimpleNamespace(resources=SimpleNamespace(weights="nats", weights_base_every=4))
    assert store_site.bus is not None
    async with (
        outlets.open_outlet(recipe, store_site.bus, "run-2", asyncio.Event()),
        asyncio.timeout(10.0),
    ):
        while "get no answer any more: ArithmeticError: not foreseen" not in caplog.text:
            await asyncio.sleep(0.01)


async def test_a_broker_that_is_killed_while_weights_go_out(
    store_site: Site, nats_server: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(buckets, "_TRY_S", 1.0)
    await store_site.learner.publish()
    store_site.learner.tensors["a"].normal_()
    sending = asyncio.create_task(store_site.learner.publish(moves=1.0))
    await asyncio.sleep(0.01)
    nats_server.kill9()
    await asyncio.sleep(0.2)
    nats_server.restart()
    published = await sending
    assert await becomes(store_site.node(), published, store_site.learner) == []


async def test_a_learner_that_is_told_to_stop_does_not_wait_for_a_broker_that_is_gone(
    store_site: Site, nats_server: Any
) -> None:
    outlet = store_site.learner.outlet
    assert isinstance(outlet, outlets.ObjectStoreWeights)
    nats_server.kill9()
    outlet._stop.set()
    async with asyncio.timeout(15.0):  # of a patience of 20 s
        with pytest.raises(TemporaryError, match="NATS"):
            await store_site.learner.publish()


async def test_a_learner_that_dies_while_it_sends_leaves_nothing_that_is_seen(
    store_site: Site, monkeypatch: Any
) -> None:
    first = await store_site.learner.publish()
    store_site.learner.tensors["a"].normal_()
    assert store_site.bucket is not None
    sent = 0
    client = store_site.bucket._client
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
    monkeypatch.setattr(store_site.bucket._js, "purge_stream", kept)
    with pytest.raises(asyncio.CancelledError):
        await store_site.learner.publish(moves=1.0)
    monkeypatch.undo()
    assert [one.name for one in await store_site.bucket.objects()] == ["policy-1-0"]
    left = await stored(store_site)
    async with store_site.node().held(first) as path:
        assert file.open_verified(path).digest == first.policy.digest
    second = store_site.successor()
    published = await second.publish()
    await second.outlet.drop_foreign()
    await gets(store_site.node(), published, second)
    assert [one.name for one in await store_site.bucket.objects()] == [
        "policy-2-0"
    ] and await stored(store_site) < left


async def test_asking_again_and_again_sends_no_more_than_a_tenth_of_the_time(
    store_site: Site,
) -> None:
    published = await store_site.learner.publish()
    node, sent = store_site.node(), 0
    assert store_site.bucket is not None
    put = store_site.bucket.put

    async def counted(*words: Any) -> Any:
        nonlocal sent
        sent += 1
        return await put(*words)

    store_site.bucket.put = counted  # type: ignore[method-assign]
    for _ in range(200):
        await node._rebuilder._request_whole(published, "I say so")
    await asyncio.sleep(0.2)
    assert 1 <= sent <= 5
