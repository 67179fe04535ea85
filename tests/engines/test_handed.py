"""vLLM takes weights that a learner hands over by collectives, reads them back, and survives a hand-over that breaks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from banyan.errors import TemporaryError
from services.chassis import handover, weightfile
from tests.engines.rig import BASE, OTHER, TOLERANCE, Rig, ask, finish, gap, prompt
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


async def test_vllm_computes_with_what_was_handed_over(vllm: Rig, made: Learner, tmp_path: Path) -> None:
    before = vllm.engine.stats().unproven
    for seed in (OTHER, BASE, OTHER):
        await takes(vllm, made, tmp_path / "node", vllm.model(seed).state_dict())
        request = ask(seed, prompt(40))
        ended = await asyncio.to_thread(finish, vllm.engine, [request])
        assert gap(vllm.model(seed), ended[seed], request) < TOLERANCE
        assert gap(vllm.model(BASE + OTHER - seed), ended[seed], request) > 1.0, "the two disagree"
    assert vllm.engine.stats().unproven == before, "all were read back, without a file"


@pytest.mark.parametrize("how", ["the learner hangs up", "a byte changes"])
async def test_a_hand_over_that_breaks_takes_the_engine_out_of_service(
    vllm: Rig, made: Learner, tmp_path: Path, monkeypatch: Any, how: str
) -> None:
    read_flat, broadcast, sent = weightfile.read_flat, handover.Ranks.broadcast, list[int]()

    def changed(manifest: weightfile.WeightManifest) -> torch.Tensor:
        flat_B = read_flat(manifest).clone()
        flat_B[len(flat_B) // 2] ^= 1
        return flat_B

    def breaks(self: handover.Ranks, flat_B: torch.Tensor) -> None:
        sent.append(len(flat_B))
        if len(sent) == 3:
            raise TemporaryError("the learner ends")
        broadcast(self, flat_B)

    says = {"a byte changes": "the weights handed over digest to", "the learner hangs up": "the hand-over broke: .*by peer"}[
        how
    ]
    vllm.engine.submit(ask("waits", prompt(9)))
    with monkeypatch.context() as patch, pytest.raises(TemporaryError, match=f"did not come whole: {says}") as caught:
        if how == "a byte changes":
            patch.setattr(weightfile, "read_flat", changed)
        else:
            patch.setattr(handover.Ranks, "broadcast", breaks)
        patch.setattr(handover, "PIECE_BYTES", 50_000)
        await takes(vllm, made, tmp_path / "node", vllm.model(OTHER).state_dict())
    assert caught.value.reason == "UNPROVEN" and not vllm.engine.step(), "nothing is sampled"
    await takes(vllm, made, tmp_path / "node", vllm.model(OTHER).state_dict())
    ended = await asyncio.to_thread(finish, vllm.engine)
    assert gap(vllm.model(OTHER), ended["waits"], ask("waits", prompt(9))) < TOLERANCE


async def test_an_update_that_does_not_take_effect_is_caught(
    vllm: Rig, made: Learner, tmp_path: Path, monkeypatch: Any
) -> None:
    """Neither by what was kept of the version before, nor where a version came and was not used."""
    await takes(vllm, made, tmp_path / "node", vllm.model(BASE).state_dict())
    policy, path = vllm.policy(OTHER)
    core, (base, base_path) = vllm.engine._core, vllm.policy(BASE)

    async def nothing(manifest: Path) -> None:
        pass

    with monkeypatch.context() as patch, pytest.raises(TemporaryError, match="computes with other values of"):
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
