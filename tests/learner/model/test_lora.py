"""LoRA: only the adapter learns, the plain model goes out, and an adapter needs its own base."""

import asyncio
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from banyan.errors import InvalidInput
from banyan.recipe import Lora, Optimise
from services.chassis.weights import file
from services.learner.checkpoints import checkpoint
from services.learner.checkpoints.checkpoint import Mark
from services.learner.model import lora as adapter
from services.learner.model.load import forward, load, prepare
from services.learner.training.trainer import Trainer, settle
from services.learner.training.trainer_thread import TorchThread
from tests.learner.in_memory_learner import RUN, MemoryStore, Rig, grown, recipe, straight
from tests.learner.random_sequences import sequences_of

LORA: dict[str, Any] = {"rank": 4, "alpha": 8.0}


@pytest.fixture(autouse=True)
def _settled() -> None:
    settle(1)


def adapted(
    make: Callable[..., Any], dtype: torch.dtype = torch.float32, **changes: Any
) -> Trainer:
    lora = Lora(**{**LORA, **changes})
    model = adapter.attach(prepare(make(0, torch.float32)), lora, seed=1)
    return Trainer(model, Optimise(learning_rate=1e-2, lora=lora), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_adapter_learns(
    tiny_llama: Callable[..., Any], forest: Any, dtype: torch.dtype
) -> None:
    trainer = adapted(tiny_llama, dtype)
    before = {n: t.clone() for n, t in trainer.model.state_dict().items() if ".lora_" not in n}
    report = trainer.step(sequences_of(forest, 0), 0)
    assert report.applied and report.grad_norm > 0
    named = dict(trainer.model.named_parameters())
    frozen = {n: p for n, p in named.items() if ".lora_" not in n}
    assert all(p.grad is None and not p.requires_grad and p.dtype is dtype for p in frozen.values())
    assert all(
        torch.equal(before[n], t) for n, t in trainer.model.state_dict().items() if n in before
    )
    assert sorted(trainer.masters.names) == sorted(set(named) - set(frozen))
    assert len(trainer.masters.names) == 2 * 7 * 2  # A and B of seven matrices of two layers
    assert all(w.dtype is torch.float32 for w in trainer.masters.weights)
    assert {k.split(".", 1)[1] for k in trainer.moments()} == set(trainer.masters.names)


def test_a_new_adapter_is_the_base_and_its_seed_decides_it(tiny_llama: Callable[..., Any]) -> None:
    base = tiny_llama(0, torch.float32).state_dict()
    first, two, other = adapted(tiny_llama), adapted(tiny_llama), adapted(tiny_llama, rank=2)
    assert first.published().keys() == base.keys()
    assert all(torch.equal(t, base[n]) for n, t in first.published().items())
    assert all(
        torch.equal(a, b) for a, b in zip(first.masters.weights, two.masters.weights, strict=True)
    )
    assert {w.shape for w in other.masters.weights if w.shape[0] < 4} == {(2, 32), (2, 48)}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.2)])
def test_what_is_handed_out_computes_the_same(
    tiny_llama: Callable[..., Any], forest: Any, dtype: torch.dtype, tolerance: float
) -> None:
    """In bfloat16 the sum of two products is rounded elsewhere than the product with their sum."""
    trainer = adapted(tiny_llama, dtype)
    for step in range(3):
        trainer.step(sequences_of(forest, step), step)
    plain = prepare(tiny_llama(0, torch.float32)).to(dtype)
    sequence = sequences_of(forest, 9)[0]
    with torch.no_grad():
        untrained, trained = forward(plain, sequence)[0], forward(trainer.model, sequence)[0]
        plain.load_state_dict({n: t.to(dtype) for n, t in trainer.published().items()})
        merged = forward(plain, sequence)[0]
    assert float((untrained - trained).abs().max()) > 2 * tolerance  # it has learned something
    assert float((merged - trained).abs().max()) < tolerance


def test_gradients_are_those_of_the_whole_matrix(
    tiny_llama: Callable[..., Any], forest: Any
) -> None:
    """∂L/∂B = s ∂L/∂W Aᵀ and ∂L/∂A = s Bᵀ ∂L/∂W, in float64."""
    lora = Lora(**LORA)
    model = adapter.attach(prepare(tiny_llama(0, torch.float64)), lora, seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.02)
    trained = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    whole = prepare(tiny_llama(0, torch.float64))
    whole.load_state_dict(adapter.merged(model, trained))
    sequences = sequences_of(forest, 3)
    for network in (model, whole):
        for sequence in sequences:
            logp_E, entropy_R = forward(network, sequence)[:2]
            (logp_E.square().sum() + entropy_R.sum()).backward()
    parameters = dict(model.named_parameters())
    for name, parameter in whole.named_parameters():
        at = name.removesuffix(".weight")
        if f"{at}.lora_A.default.weight" not in parameters:
            continue
        a = parameters[f"{at}.lora_A.default.weight"]
        b = parameters[f"{at}.lora_B.default.weight"]
        assert parameter.grad is not None and a.grad is not None and b.grad is not None
        torch.testing.assert_close(b.grad, 2.0 * parameter.grad @ a.T, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(a.grad, 2.0 * b.T @ parameter.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "targets", [["q_proj", "nothing"], ["lm_head"], ["embed_tokens"], ["proj"]]
)
def test_targets_that_are_no_matrices_are_refused(
    tiny_llama: Callable[..., Any], targets: list[str]
) -> None:
    with pytest.raises(
        InvalidInput, match=rf"{targets[-1]}.*none of the model's matrices: down_proj, gate_proj"
    ):
        adapted(tiny_llama, targets=targets)


def test_targets_are_named_by_their_ends(tiny_llama: Callable[..., Any]) -> None:
    trainer = adapted(tiny_llama, targets=["q_proj", "layers.1.mlp.up_proj"])
    assert len(trainer.masters.names) == 6
    targets = adapter.config(trainer.model, "base")["target_modules"]
    assert "model.layers.1.mlp.up_proj" in targets and "model.layers.0.mlp.up_proj" not in targets
    assert adapter.config(adapted(tiny_llama).model, "base")["target_modules"] == [
        *("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    ]


# -- checkpoints --


async def test_peft_loads_a_checkpoint_with_the_trained_logits(
    tmp_path: Path, tiny_folder: Path, forest: Any
) -> None:
    from peft import AutoPeftModelForCausalLM

    thread = TorchThread(recipe(1, lora=LORA), 1)
    await thread.load(tiny_folder, resumed=False, base=tiny_folder)
    for step in range(2):
        thread.trainer.step(sequences_of(forest, step), step)
    snapshot = await thread.snapshot(Mark(RUN, 1, 2, 2, "ab"), copied=True)
    path = checkpoint.write(tmp_path / "checkpoints", snapshot, tiny_folder)
    assert sorted(p.name for p in path.iterdir()) == [
        *(
            "adapter_config.json",
            "adapter_model.safetensors",
            "manifest.json",
            "optimizer.safetensors",
        )
    ]
    loaded: Any = AutoPeftModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        logits = loaded(input_ids=tokens).logits
        base: Any = load(tiny_folder)
        base.config._attn_implementation = "eager"
        base.load_state_dict(thread.trainer.published())
        trained = base(input_ids=tokens).logits
    torch.testing.assert_close(logits, trained, rtol=1e-4, atol=1e-5)
    thread.done()


async def test_another_base_is_refused_by_name(
    tmp_path: Path, tiny_folder: Path, tiny_llama: Callable[..., Any]
) -> None:
    lora = recipe(2, lora=LORA)
    await Rig(tmp_path / "run", tiny_folder, MemoryStore(grown), lora).run()
    moved = tmp_path / "moved"
    shutil.copytree(tiny_folder, moved)
    # The same base lies elsewhere.
    await Rig(tmp_path / "run", moved, MemoryStore(grown, epoch=1), lora).run()
    other = tmp_path / "other"
    tiny_llama(5, torch.float32).save_pretrained(other)
    with pytest.raises(
        InvalidInput, match=r"step-00000002.*was trained on a model of digest .*other has"
    ):
        await Rig(tmp_path / "run", other, MemoryStore(grown, epoch=1), lora).run()
    config = moved / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 0.5}))
    with pytest.raises(InvalidInput, match=r"weights or its config.json are others"):
        await Rig(tmp_path / "run", moved, MemoryStore(grown, epoch=1), lora).run()


@pytest.mark.parametrize("dies_at", [0, 2, 4])
async def test_a_learner_that_dies_ends_with_the_same_bits(
    tmp_path: Path, tiny_folder: Path, dies_at: int
) -> None:
    expected = await straight(tmp_path, tiny_folder, lora=LORA)
    store = MemoryStore(grown, die_after_commit=dies_at)
    restarted = Rig(
        tmp_path / "killed", tiny_folder, store, recipe(5, checkpoint_every=1, lora=LORA)
    )
    with pytest.raises(ConnectionAbortedError):
        await restarted.run()
    store.die_after_commit = -1
    await restarted.run()
    assert store.puts[-1].policy.digest == expected.store.puts[-1].policy.digest
    straight_tensors, restarted_tensors = (
        load_file(_newest(rig) / checkpoint.ADAPTER) for rig in (expected, restarted)
    )
    assert straight_tensors.keys() == restarted_tensors.keys()
    assert all(torch.equal(t, restarted_tensors[n]) for n, t in straight_tensors.items())
    assert any(float(t.abs().max()) > 0 for n, t in straight_tensors.items() if ".lora_B." in n)
    first = expected.store.puts[0].policy.digest
    whole = await straight(tmp_path / "whole", tiny_folder, steps=1)
    assert first == whole.store.puts[0].policy.digest  # step 0 is the base, adapter or not


async def test_an_engine_that_was_started_for_adapters_gets_one(
    tmp_path: Path, tiny_folder: Path
) -> None:
    data = recipe(1, lora=LORA).model_dump()
    data["resources"] |= {"engine": "vllm", "engine_settings": {"lora_rank": 8}}
    rig = Rig(tmp_path, tiny_folder, MemoryStore(grown), type(recipe(1)).model_validate(data))
    await asyncio.wait_for(rig.run(), 30)
    manifest = file.read(rig.weights._versions[-1].manifest_path)
    assert manifest.adapter is not None and manifest.canary is not None
    assert (manifest.adapter["r"], manifest.adapter["lora_alpha"], manifest.adapter["bias"]) == (
        4,
        8.0,
        "none",
    )
    assert {t.name for t in manifest.tensors} == set(load_file(_newest(rig) / checkpoint.ADAPTER))


def _newest(rig: Rig) -> Path:
    newest = checkpoint.newest(rig.folder / "checkpoints", RUN)
    assert newest is not None
    return newest[0]


def moved(trainer: Trainer, before: dict[str, torch.Tensor]) -> float:
    """Return how far the merged matrices with an adapter moved, as a share of the base's size."""
    after, base = (
        trainer.published(),
        {adapter.plain_name(n): t for n, t in trainer.model.state_dict().items()},
    )
    pairs = [
        (after[n].double() - before[n].double(), base[n].double())
        for n in adapter.matrices(trainer.model)
    ]
    return math.sqrt(
        sum(float(d.pow(2).sum()) for d, _ in pairs) / sum(float(w.pow(2).sum()) for _, w in pairs)
    )


@pytest.mark.parametrize("how", [{"rank": 2, "alpha": 2.0}, LORA, {"rank": 8, "alpha": 32.0}])
def test_the_relative_rate_is_how_far_adam_moves_the_merged_model(
    tiny_llama: Callable[..., Any], forest: Any, how: dict[str, Any]
) -> None:
    """In its first step Adam moves every number of B by the rate; A not yet, as B is 0."""
    trainer = adapted(tiny_llama, **how)
    before = {name: tensor.clone() for name, tensor in trainer.published().items()}
    whole = trainer.drift([])["whole_rate"]
    rate = trainer.step(sequences_of(forest, 0), 0).learning_rate
    assert moved(trainer, before) == pytest.approx(rate / whole, rel=0.1)


def test_both_matrices_of_an_adapter_count(tiny_llama: Callable[..., Any]) -> None:
    """The mean square over random signs of a step is reported; here most of it comes from A."""
    trainer, rate = adapted(tiny_llama), 1e-5
    torch.manual_seed(0)
    masters = trainer.masters
    start = [
        torch.randn_like(w) * (0.3 if "lora_B" in n else 0.05)
        for n, w in zip(masters.names, masters.weights, strict=True)
    ]
    put(masters.weights, start)
    before = {name: tensor.clone() for name, tensor in trainer.published().items()}
    whole, squares = trainer.drift([])["whole_rate"], []
    for _ in range(20):
        put(
            masters.weights,
            [value + rate * (2.0 * torch.randint(0, 2, value.shape) - 1.0) for value in start],
        )
        squares.append(moved(trainer, before) ** 2)
    assert math.sqrt(sum(squares) / len(squares)) == pytest.approx(rate / whole, rel=0.03)


@torch.no_grad()
def put(weights: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)


def test_a_base_of_the_hub_is_named_with_its_revision() -> None:
    name, path = "base_model_name_or_path", "/models/a@b"
    assert adapter.named_base("org/name@abc") == {name: "org/name", "revision": "abc"}
    assert adapter.named_base("org/name") == {name: "org/name"}
    assert adapter.named_base(path) == {name: path}
