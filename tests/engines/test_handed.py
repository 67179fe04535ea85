"""Weights that a learner broadcasts to vLLM: loading, reading back, and broken transfers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from banyan.errors import TemporaryError
from banyan.policy import PolicyVersion
from banyan.recipe import Resources
from services.chassis.weights import collective, file
from services.rollout.engines.vllm_engine import start
from tests.engines.conftest import HAS_VLLM
from tests.engines.rig import (
    BASE,
    OTHER,
    TOLERANCE,
    Rig,
    ask,
    finish,
    gap,
    model,
    model_folder,
    prompt,
)
from tests.weights.handovers import Learner, learner

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest_asyncio.fixture
async def made(tmp_path: Path) -> AsyncIterator[Learner]:
    async with learner(tmp_path) as found:
        yield found


async def takes(vllm: Rig, made: Learner, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    published = made.publish(tensors=tensors)
    async with made.node(folder).held(published) as path:
        assert not path.with_suffix(".bin").exists()
        await asyncio.to_thread(vllm.engine.load, published.policy, path)


async def test_vllm_computes_with_what_was_handed_over(
    vllm: Rig, made: Learner, tmp_path: Path
) -> None:
    before = vllm.engine.stats().unproven
    for seed in (OTHER, BASE, OTHER):
        await takes(vllm, made, tmp_path / "node", vllm.model(seed).state_dict())
        request = ask(seed, prompt(40))
        ended = await asyncio.to_thread(finish, vllm.engine, [request])
        assert gap(vllm.model(seed), ended[seed], request) < TOLERANCE
        assert gap(vllm.model(BASE + OTHER - seed), ended[seed], request) > 1.0, "the two disagree"
    assert vllm.engine.stats().unproven == before, "all were read back, without a file"


def changed(manifest: file.WeightManifest) -> torch.Tensor:
    flat_B = _READ(manifest).clone()
    flat_B[len(flat_B) // 2] ^= 1
    return flat_B


class Breaks:
    """A learner that ends at its third piece."""

    def __init__(self) -> None:
        self.broadcast, self.sent = collective.Ranks.broadcast, 0

    def __call__(self, ranks: collective.Ranks, flat_B: torch.Tensor) -> None:
        self.sent += 1
        if self.sent == 3:
            raise TemporaryError("the learner ends")
        self.broadcast(ranks, flat_B)


_READ = file.read_flat
HOW = {
    "a byte changes": "the weights handed over digest to",
    "the learner hangs up": "the hand-over broke: .*by peer",
}


async def breaks(engine: Any, made: Learner, folder: Path, workers: int, how: str) -> None:
    """Break a hand-over, and check that the engine is out of service."""
    published = made.publish(OTHER, tensors=model(OTHER).state_dict())
    with pytest.MonkeyPatch.context() as patch:
        if how == "a byte changes":
            patch.setattr(file, "read_flat", changed)
        else:
            failing = Breaks()
            patch.setattr(
                collective.Ranks, "broadcast", lambda ranks, flat_B: failing(ranks, flat_B)
            )
        patch.setattr(collective, "PIECE_BYTES", 50_000)
        with pytest.raises(TemporaryError, match=f"did not come whole: .*{HOW[how]}") as caught:
            async with made.node(folder, workers).held(published) as path:
                await asyncio.to_thread(engine.load, published.policy, path)
    assert caught.value.reason == "UNPROVEN" and not engine.step(), "nothing is sampled"
    with pytest.raises(TemporaryError, match="no policy that is proven"):
        engine.logprobs(prompt(9), 1, 1.0)


@pytest.mark.parametrize("how", HOW)
async def test_a_hand_over_that_breaks_takes_the_engine_out_of_service(
    vllm: Rig, made: Learner, tmp_path: Path, how: str
) -> None:
    vllm.engine.submit(ask("waits", prompt(9)))
    await breaks(vllm.engine, made, tmp_path / "node", 1, how)
    await takes(vllm, made, tmp_path / "again", vllm.model(OTHER).state_dict())
    ended = await asyncio.to_thread(finish, vllm.engine)
    assert gap(vllm.model(OTHER), ended["waits"], ask("waits", prompt(9))) < TOLERANCE


@pytest.mark.vllm
@pytest.mark.skipif(not HAS_VLLM, reason="make vllm")
async def test_two_workers_take_what_is_handed_over_and_survive_what_breaks(
    made: Learner, tmp_path: Path
) -> None:
    """Of several workers, vLLM receives the first error only.

    It would take the others' answers for later ones.
    """
    settings = {"arguments": {"tensor_parallel_size": 2}}
    resources = Resources(
        engine="vllm", kv_tokens=2048, max_branches=4, dtype="float32", engine_settings=settings
    )
    folder = model_folder(tmp_path / "model")
    engine = await asyncio.to_thread(start.build, folder, resources, 1, PolicyVersion(0, 0, b""))
    try:
        request = ask("a", prompt(40))
        for number, how in enumerate((None, *HOW, None, None)):
            node = tmp_path / f"node-{number}"
            if how is not None:
                await breaks(engine, made, node, 2, how)
                continue
            seed = 2 + number
            published = made.publish(tensors=model(seed).state_dict())
            async with made.node(node, 2).held(published) as path:
                await asyncio.to_thread(engine.load, published.policy, path)
            ended = await asyncio.to_thread(finish, engine, [request])
            assert gap(model(seed), ended["a"], request) < TOLERANCE
    finally:
        await asyncio.to_thread(engine.close)


async def test_an_update_that_does_not_take_effect_is_caught(
    vllm: Rig, made: Learner, tmp_path: Path, monkeypatch: Any
) -> None:
    """It shows against the samples of the version before, and where a version is not used."""
    await takes(vllm, made, tmp_path / "node", vllm.model(BASE).state_dict())
    policy, path = vllm.policy(OTHER)
    core, (base, base_path) = vllm.engine._core, vllm.policy(BASE)

    async def nothing(manifest: Path) -> None:
        pass

    with (
        monkeypatch.context() as patch,
        pytest.raises(TemporaryError, match="computes with other values of"),
    ):
        patch.setattr(core, "update", nothing)
        await asyncio.to_thread(vllm.engine.load, policy, path)
    update = core.update

    async def undone(manifest: Path) -> None:
        await update(manifest)
        await update(base_path)

    published = made.publish(tensors=vllm.model(OTHER).state_dict())
    before = vllm.engine.stats().unproven
    with monkeypatch.context() as patch:
        patch.setattr(core, "update", undone)
        async with made.node(tmp_path / "again").held(published) as handed:
            await asyncio.to_thread(vllm.engine.load, published.policy, handed)
    assert vllm.engine.stats().unproven == before + 1, "there is nothing left to compare with"
    await asyncio.to_thread(vllm.engine.load, base, base_path)
