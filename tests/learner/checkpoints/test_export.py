"""`banyan export` of an adapter: PEFT loads it, and with --merge transformers alone does."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from banyan.cli.export import export
from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs
from services.learner.checkpoints import checkpoint
from services.learner.checkpoints.checkpoint import Mark
from services.learner.training.trainer_thread import TorchThread
from tests.learner.in_memory_learner import RUN, recipe
from tests.learner.random_sequences import sequences_of

TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6]])


async def trained(
    folder: Path, base: Path, forest: Any, **optimise: Any
) -> tuple[rs.Run, Path, dict[str, torch.Tensor]]:
    """Train a run of two steps; return its record, its checkpoint and the whole model's tensors."""
    wanted = recipe(2, **optimise).model_copy(update={"model": str(base)})
    thread = TorchThread(wanted, 1)
    await thread.load(base, resumed=False, base=base)
    for step in range(2):
        thread.trainer.step(sequences_of(forest, step), step)
    snapshot = await thread.snapshot(Mark(RUN, 1, 2, 2, "ab"), copied=True)
    path = checkpoint.write(folder / "checkpoints", snapshot, base)
    tensors = {name: tensor.clone() for name, tensor in thread.trainer.published().items()}
    thread.done()
    return rs.Run(run_id=RUN, recipe_json=wanted.model_dump_json()), path, tensors


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=TOKENS).logits  # type: ignore[no-any-return]


def plain(base: Path, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    untrained = logits(model)
    model.load_state_dict(tensors)
    assert float((logits(model) - untrained).abs().max()) > 0.01
    return logits(model)


async def test_merged_it_is_a_plain_model(tmp_path: Path, tiny_folder: Path, forest: Any) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    tiny_folder = shutil.copytree(tiny_folder, tmp_path / "base")
    config = tiny_folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "bfloat16"}))
    run, kept, tensors = await trained(
        tmp_path, tiny_folder, forest, lora={"rank": 4, "alpha": 8.0}
    )
    assert export._write(run, kept, tmp_path / "to", merge=True) == "merged model"
    names = {p.name for p in (tmp_path / "to").iterdir()}
    assert {"config.json", "model.safetensors"} <= names and not [
        n for n in names if "adapter" in n or "optim" in n
    ]
    exported = load_file(tmp_path / "to" / "model.safetensors")
    assert exported.keys() == load_file(tiny_folder / "model.safetensors").keys()
    assert all(torch.equal(exported[n], tensors[n]) for n in exported)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "to")
    assert torch.equal(logits(model), plain(tiny_folder, tensors))


async def test_as_it_is_peft_loads_it(tmp_path: Path, tiny_folder: Path, forest: Any) -> None:
    from peft import AutoPeftModelForCausalLM

    run, kept, tensors = await trained(
        tmp_path, tiny_folder, forest, lora={"rank": 4, "alpha": 8.0, "targets": ["q_proj"]}
    )
    assert export._write(run, kept, tmp_path / "to", merge=False) == "adapter"
    assert json.loads((tmp_path / "to" / "adapter_config.json").read_text())["target_modules"] == [
        "q_proj"
    ]
    assert not (tmp_path / "to" / "optimizer.safetensors").exists()
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "to", dtype=torch.float32)
    torch.testing.assert_close(logits(model), plain(tiny_folder, tensors), rtol=1e-4, atol=1e-5)


async def test_with_another_base_nothing_is_written(
    tmp_path: Path, tiny_folder: Path, tiny_llama: Callable[..., Any], forest: Any
) -> None:
    run, kept, _ = await trained(tmp_path, tiny_folder, forest, lora={"rank": 4, "alpha": 8.0})
    other = tmp_path / "other"
    tiny_llama(5, torch.float32).save_pretrained(other)
    data = json.loads(run.recipe_json) | {"model": str(other)}
    with pytest.raises(InvalidInput, match="was trained on a model of digest"):
        export._write(
            rs.Run(run_id=RUN, recipe_json=json.dumps(data)), kept, tmp_path / "to", merge=True
        )
    assert not (tmp_path / "to").exists()


async def test_a_whole_model_has_nothing_to_merge(
    tmp_path: Path, tiny_folder: Path, forest: Any
) -> None:
    run, kept, _ = await trained(tmp_path, tiny_folder, forest)
    with pytest.raises(InvalidInput, match="leave --merge out"):
        export._write(run, kept, tmp_path / "to", merge=True)
    assert export._write(run, kept, tmp_path / "to", merge=False) == "model"
