"""What every weight store promises, by the same tests: the bytes that were published, whole, or an error that says why."""

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
async def made(request: Any, tmp_path: Path, nats_server: Any) -> AsyncIterator[Site]:
    async with site(request.param, tmp_path, nats_server.url) as found:
        yield found


async def gets(node: Weights, published: Published, learner: Learner) -> None:
    """The node has what the learner has in memory."""
    async with node.held(published) as path:
        manifest = file.open_verified(path)
        assert manifest.digest == published.policy.digest
        assert (manifest.epoch, manifest.step) == (published.policy.epoch, published.policy.step)
        read = file.read_tensors(manifest)
        assert all(torch.equal(read[name], tensor) for name, tensor in learner.tensors.items())


async def test_each_version_comes_as_it_was_published(made: Site) -> None:
    node = made.node()
    for moves in (0.01, 0.001, 1.0, 0.01, 0.01, 0.01, 0.01):
        await gets(node, await made.learner.publish(moves), made.learner)


async def test_a_node_that_comes_late_gets_the_newest(made: Site) -> None:
    for _ in range(7):
        newest = await made.learner.publish()
        await gets(made.node(), newest, made.learner)


async def test_a_node_that_missed_some_gets_the_newest(made: Site) -> None:
    node = made.node()
    await gets(node, await made.learner.publish(), made.learner)
    for missed in (1, 2, 5):
        for _ in range(missed):
            await made.learner.publish()
        await gets(node, await made.learner.publish(), made.learner)


async def test_the_three_newest_versions_can_be_had(made: Site) -> None:
    for _ in range(6):
        published = [await made.learner.publish() for _ in range(3)]
        for one in published:
            async with made.node().held(one) as path:
                assert file.open_verified(path).digest == one.policy.digest


async def test_the_same_weights_under_a_new_number(made: Site) -> None:
    node = made.node()
    first = await made.learner.publish()
    await gets(node, first, made.learner)
    again = await made.learner.publish(moves=0)
    assert again.policy.digest == first.policy.digest
    await gets(node, again, made.learner)
    await gets(node, await made.learner.publish(), made.learner)


async def test_another_learner_goes_on(made: Site) -> None:
    node = made.node()
    await gets(node, await made.learner.publish(), made.learner)
    second = made.successor()
    for _ in range(3):
        published = await second.publish()
        second.folder.drop_foreign()
        await second.outlet.drop_foreign()
        await gets(node, published, second)
        await gets(made.node(), published, second)


async def test_weights_that_nobody_published_are_refused(made: Site) -> None:
    node, published = made.node(), await made.learner.publish()
    for wrong in (b"x" * 32, b"y" * 32):
        with pytest.raises(BanyanError):
            async with node.held(
                replace(published, policy=replace(published.policy, digest=wrong))
            ):
                pass
    await gets(node, published, made.learner)


async def test_a_version_that_is_gone_is_an_error_and_not_another_version(made: Site) -> None:
    first = await made.learner.publish()
    for _ in range(9):
        newest = await made.learner.publish()
    node = made.node()
    with pytest.raises(BanyanError):
        async with node.held(first):
            pass
    await gets(node, newest, made.learner)
