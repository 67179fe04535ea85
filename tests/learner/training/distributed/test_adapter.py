"""An adapter over two ranks: weights and checkpoints are those of one process."""

from pathlib import Path
from typing import Any

import pytest
import torch

from banyan.recipe import Recipe
from services.learner.checkpoints import checkpoint
from services.learner.checkpoints.checkpoint import Snapshot
from services.learner.model import lora as adapter
from services.learner.training.trainer_thread import TorchThread
from tests.learner.training.distributed.conftest import Pair, recipe
from tests.learner.training.distributed.test_two import (
    LORA,
    Batches,
    alone,
    apart,
    batches_of,
    trained,
)

pytestmark = pytest.mark.slow  # groups of processes


def lora(**changes: Any) -> Recipe:
    return recipe(lora=LORA, **changes)


def for_adapters(rank: int) -> Recipe:
    data = lora(engine="vllm").model_dump(mode="json")
    data["resources"]["engine_settings"] = {"lora_rank": rank}
    return Recipe.model_validate(data)


async def published(thread: TorchThread) -> tuple[Any, Any]:
    return await thread.run(thread._published)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_the_merged_model_goes_out(
    pair: Pair, tiny_folder: Path, forest: Any, dtype: str
) -> None:
    thread, single = pair.thread(lora(dtype=dtype)), TorchThread(lora(dtype=dtype), 1)
    for one in (thread, single):
        await one.load(tiny_folder, resumed=False, base=tiny_folder)
    (first, _), (base, config) = await published(thread), await published(single)
    assert config is None and set(first) == set(base)
    assert all(torch.equal(first[n], base[n]) for n in base)
    assert first["lm_head.weight"].data_ptr() == first["model.embed_tokens.weight"].data_ptr()
    assert {t.dtype for t in first.values()} == {getattr(torch, dtype)}
    _, state = await trained(thread, tiny_folder, batches_of(forest))
    out = (await published(thread))[0]
    names = {adapter.stored_name(name): name for name in single.trainer.masters.names}
    expected = adapter.merged(single.trainer.model, {names[n]: t for n, t in state.weights.items()})
    assert set(out) == set(expected) and all(torch.equal(out[n], t) for n, t in expected.items()), (
        "the same sums"
    )
    assert not torch.equal(
        out["model.layers.0.mlp.up_proj.weight"], base["model.layers.0.mlp.up_proj.weight"]
    )
    single.done()


async def test_a_rank_holds_its_rows_of_the_base_alone(pair: Pair, tiny_folder: Path) -> None:
    thread = pair.thread(lora(dtype="bfloat16"))
    await thread.load(tiny_folder, resumed=False, base=tiny_folder)
    frozen = {
        name: p for name, p in thread.trainer.model.named_parameters() if ".lora_" not in name
    }
    assert frozen and all(not p.requires_grad for p in frozen.values())
    local: list[torch.Tensor] = [p.to_local() for p in frozen.values()]
    assert {t.dtype for t in local} == {torch.bfloat16}
    assert sum(t.numel() for t in local) * 2 == sum(p.numel() for p in frozen.values())
    assert all(t.dtype is torch.float32 for t in thread.trainer.masters.weights)
    single = TorchThread(lora(dtype="bfloat16"), 1)
    await single.load(tiny_folder, resumed=False, base=tiny_folder)
    assert (thread.weight_bytes(), thread.trained_bytes()) == (
        single.weight_bytes(),
        single.trained_bytes(),
    )
    single.done()


async def test_bfloat16_keeps_float32_shards(pair: Pair, tiny_folder: Path, forest: Any) -> None:
    """Adam's first step of B, which begins at 0, is a sign: gradients and weights are compared."""
    how = lora(dtype="bfloat16")
    thread, single = pair.thread(how), TorchThread(how, 1)
    timed, state = await trained(thread, tiny_folder, batches_of(forest, 1))
    expected, whole = await trained(single, tiny_folder, batches_of(forest, 1))
    assert timed[0].report.loss == pytest.approx(expected[0].report.loss, rel=0.05, abs=0.02)
    gradients = (
        {n: t for n, t in s.moments.items() if n.startswith("exp_avg.")} for s in (whole, state)
    )
    assert apart(*gradients) < 1e-2
    out, plain = (await published(thread))[0], (await published(single))[0]
    assert (
        apart({n: t.float() for n, t in plain.items()}, {n: t.float() for n, t in out.items()})
        < 2e-3
    )
    assert {t.dtype for t in state.weights.values()} == {torch.float32}
    single.done()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_checkpoint_of_two_ranks_goes_on_bit_for_bit(
    pair: Pair, tiny_folder: Path, forest: Any, tmp_path: Path, dtype: str
) -> None:
    batches, how = batches_of(forest, 3), lora(dtype=dtype)
    straight = (await trained(pair.thread(how), tiny_folder, batches))[1]
    frozen = (await trained(pair.thread(how), tiny_folder, batches[:2]))[1]
    half = checkpoint.write(tmp_path / "checkpoints", frozen, tiny_folder)
    both = (await trained(pair.thread(how), half, batches[2:], 2, tiny_folder))[1]
    for one, two in ((straight.weights, both.weights), (straight.moments, both.moments)):
        assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)
    assert any(float(t.abs().max()) > 0 for n, t in both.weights.items() if ".lora_B." in n)


@pytest.mark.parametrize("order", [(2, 1), (1, 2)])
async def test_a_checkpoint_is_read_by_any_number_of_ranks(
    pair: Pair, tiny_folder: Path, forest: Any, tmp_path: Path, order: tuple[int, int]
) -> None:
    async def go(ranks: int, folder: Path, batches: Batches, first: int) -> Snapshot:
        thread = pair.thread(lora()) if ranks == 2 else TorchThread(lora(), 1)
        result = await trained(thread, folder, batches, first, tiny_folder)
        if ranks == 1:
            thread.done()
        return result[1]

    batches = batches_of(forest, 4)
    straight = (await alone(tiny_folder, batches, lora()))[1]
    half = checkpoint.write(
        tmp_path / "checkpoints", await go(order[0], tiny_folder, batches[:2], 0), tiny_folder
    )
    assert sorted(p.name for p in half.iterdir()) == [
        *(
            "adapter_config.json",
            "adapter_model.safetensors",
            "manifest.json",
            "optimizer.safetensors",
        )
    ]
    both = await go(order[1], half, batches[2:], 2)
    assert apart(straight.weights, both.weights) < 1e-5
    assert both.adapter == straight.adapter
    assert {n: t.shape for n, t in straight.moments.items()} == {
        n: t.shape for n, t in both.moments.items()
    }


async def test_an_engine_that_was_started_for_adapters_gets_one(
    pair: Pair, tiny_folder: Path, forest: Any
) -> None:
    thread = pair.thread(for_adapters(8))
    _, state = await trained(thread, tiny_folder, batches_of(forest, 1))
    out, config = await published(thread)
    assert config is not None and (config["r"], config["lora_alpha"]) == (4, 8.0)
    assert set(out) == set(state.weights) and all(
        torch.equal(out[n], t) for n, t in state.weights.items()
    )
    assert await thread.run(thread._canary) is not None


async def test_a_rank_without_a_row_of_a_matrix_takes_part(
    pair: Pair, tiny_folder: Path, forest: Any
) -> None:
    how = recipe(lora={"rank": 1, "alpha": 4.0})
    _, state = await trained(pair.thread(how), tiny_folder, batches_of(forest))
    _, whole = await alone(tiny_folder, batches_of(forest), how)
    assert apart(whole.weights, state.weights) < 1e-5
