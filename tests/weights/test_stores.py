"""The promise of every weight store: the published bytes, whole, or an error with its cause."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from banyan.errors import BanyanError
from services.chassis.weights import file
from services.rollout.growth.policy_selection import Published
from services.rollout.weights.fetch import Weights
from tests.weights.stores import STORES, Learner, Site, site


@pytest_asyncio.fixture(params=STORES)
async def store_site(request: Any, tmp_path: Path, nats_server: Any) -> AsyncIterator[Site]:
    async with site(request.param, tmp_path, nats_server.url) as opened:
        yield opened


async def gets(node: Weights, published: Published, learner: Learner) -> None:
    """Check that the node gets the tensors of the learner's memory."""
    async with node.held(published) as path:
        manifest = file.open_verified(path)
        assert manifest.digest == published.policy.digest
        assert (manifest.epoch, manifest.step) == (published.policy.epoch, published.policy.step)
        read = file.read_tensors(manifest)
        assert all(torch.equal(read[name], tensor) for name, tensor in learner.tensors.items())


async def test_each_version_comes_as_it_was_published(store_site: Site) -> None:
    node = store_site.node()
    for moves in (0.01, 0.001, 1.0, 0.01, 0.01, 0.01, 0.01):
        await gets(node, await store_site.learner.publish(moves), store_site.learner)


async def test_a_node_that_comes_late_gets_the_newest(store_site: Site) -> None:
    for _ in range(7):
        newest = await store_site.learner.publish()
        await gets(store_site.node(), newest, store_site.learner)


async def test_a_node_that_missed_some_gets_the_newest(store_site: Site) -> None:
    node = store_site.node()
    await gets(node, await store_site.learner.publish(), store_site.learner)
    for missed in (1, 2, 5):
        for _ in range(missed):
            await store_site.learner.publish()
        await gets(node, await store_site.learner.publish(), store_site.learner)


async def test_the_three_newest_versions_can_be_had(store_site: Site) -> None:
    for _ in range(6):
        published = [await store_site.learner.publish() for _ in range(3)]
        for version in published:
            async with store_site.node().held(version) as path:
                assert file.open_verified(path).digest == version.policy.digest


async def test_the_same_weights_under_a_new_number(store_site: Site) -> None:
    node = store_site.node()
    first = await store_site.learner.publish()
    await gets(node, first, store_site.learner)
    repeated = await store_site.learner.publish(moves=0)
    assert repeated.policy.digest == first.policy.digest
    await gets(node, repeated, store_site.learner)
    await gets(node, await store_site.learner.publish(), store_site.learner)


async def test_another_learner_goes_on(store_site: Site) -> None:
    node = store_site.node()
    await gets(node, await store_site.learner.publish(), store_site.learner)
    second = store_site.successor()
    for _ in range(3):
        published = await second.publish()
        second.folder.drop_foreign()
        await second.outlet.drop_foreign()
        await gets(node, published, second)
        await gets(store_site.node(), published, second)


async def test_weights_that_nobody_published_are_refused(store_site: Site) -> None:
    node, published = store_site.node(), await store_site.learner.publish()
    for wrong in (b"x" * 32, b"y" * 32):
        with pytest.raises(BanyanError):
            async with node.held(
                replace(published, policy=replace(published.policy, digest=wrong))
            ):
                pass
    await gets(node, published, store_site.learner)


async def test_a_version_that_is_gone_is_an_error_and_not_another_version(store_site: Site) -> None:
    first = await store_site.learner.publish()
    for _ in range(9):
        newest = await store_site.learner.publish()
    node = store_site.node()
    with pytest.raises(BanyanError):
        async with node.held(first):
            pass
    await gets(node, newest, store_site.learner)
