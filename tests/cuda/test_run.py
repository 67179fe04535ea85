"""A whole run whose learner and rollout node share a CUDA device."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from banyan.v1 import runstore_service_pb2 as rs
from tests.faults.harness import system
from tests.system.tiny import byte_tokenizer, torch_recipe

pytestmark = pytest.mark.slow

STEPS = 3


def model(folder: Path) -> None:
    """Write a Llama with heads wide enough for FlexAttention, over the tiny one of the recipe."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer(folder)


async def test_a_run_trains_there(cuda: torch.device, tmp_path: Path) -> None:
    data = torch_recipe(tmp_path / "recipe")
    model(tmp_path / "recipe" / "model")
    data["task"]["path"] = str(tmp_path / "recipe" / "rows.jsonl")
    data["budget"] = {"steps": STEPS, "minutes": 5.0}
    data["resources"] |= {"dtype": "auto", "learner_device": "cuda"}
    async with system(tmp_path / "state", {"PYTHONPATH": str(tmp_path / "recipe")}) as made:
        await made.create(data)
        run = await made.finish()
    logs = "".join(path.read_text() for path in (tmp_path / "state" / "logs").glob("*"))
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    assert "training on cuda:0 in bfloat16" in logs
    assert "a graph of" in logs and "decode passes are no graphs" not in logs
