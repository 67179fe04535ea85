"""What a learner's steps come to on the host and on an accelerator, as JSON: reports, weights and canary by case.

`python -m tests.learner.accelerator_cases`: the accelerator stays registered with PyTorch, so it gets a process of its own. There
is no recomputation, for which PyTorch asks a device for more than this one has.
"""

import json
import os
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from banyan.recipe import Lora, Optimise
from services.chassis.weights import file
from services.learner.checkpoints import safetensors_writer
from services.learner.model import canary, load, lora
from services.learner.packing.head_observations import HeadObservations
from services.learner.packing.packing import PackedSequence
from services.learner.training.trainer import Trainer
from tests.learner.fake_accelerator import DEVICE, attached
from tests.learner.conftest import VOCABULARY, Forest
from tests.learner.random_sequences import sequences_of

CASES: dict[str, dict[str, Any]] = {
    "ppo-clip": {},
    "gspo": {"loss": "gspo"},
    "cispo": {"loss": "cispo"},
    "reinforce": {"loss": "reinforce"},
    "otr": {"loss": "otr"},
    "decoupled": {"loss": "decoupled"},
    "importance": {"loss_settings": {"importance": {}}},
    "kl": {"loss_settings": {"kl": {"coef": 0.1}}},
    "minibatches": {"epochs": 2},
    "head": {"head": {"width": 8}},
    "lora": {"lora": {"rank": 2}},
    "bfloat16": {},
}


def tiny(seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = LlamaConfig(
        vocab_size=VOCABULARY, num_key_value_heads=2, max_position_embeddings=256, **sizes
    )
    return load.prepare(LlamaForCausalLM(config))


def rows(case: str, step: int) -> list[PackedSequence]:
    """Rows of random trees; what they teach the head is made up."""
    found = sequences_of(Forest(), step)
    if case != "head":
        return found
    taught = HeadObservations(np.arange(4), np.array([0.0, 1.0, 0.0, 1.0]), np.ones(4), np.full(4, np.nan))
    return [replace(row, watched=taught) for row in found]


def trained(case: str, device: str) -> dict[str, Any]:
    """Two steps, a checkpoint's round trip, and one more."""
    said = {"learning_rate": 1e-3, **CASES[case]}
    optimise = Optimise(**said)
    dtype = torch.bfloat16 if case == "bfloat16" else torch.float32

    def made() -> Trainer:
        policy = tiny()
        if isinstance(optimise.lora, Lora):
            policy = lora.attach(policy, optimise.lora, 0)
        frozen = tiny(1).requires_grad_(False).to(device) if case == "kl" else None
        return Trainer(policy.to(device), optimise, dtype, 0, frozen)

    first = made()
    reports = [asdict(first.step(rows(case, step), step)) for step in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        safetensors_writer.write(Path(folder) / "moments", first.moments())
        safetensors_writer.write(Path(folder) / "weights", first.masters.exact())
        from safetensors.torch import load_file

        moments, weights = load_file(Path(folder) / "moments"), load_file(Path(folder) / "weights")
        again = made()
        with torch.no_grad():
            for name, weight in zip(again.masters.names, again.masters.weights, strict=True):
                weight.copy_(weights[lora.stored_name(name) if again.masters.adapted else name])
        again.masters.copy_to_model()
        again.restore_moments(moments)
        reports.append(asdict(again.step(rows(case, 2), 2)))
        manifest = file.write(Path(folder), "policy-1-3", again.published(), 1, 3, dtype="float32")
        told = {
            name: tensor.double().sum().item()
            for name, tensor in file.read_tensors(manifest).items()
        }
    return {
        "reports": reports,
        "weights": told,
        "canary": canary.of(again.model, "float32")["logprobs"],
    }


def main(cases: list[str]) -> None:
    """Prints it, and a mixture of host and accelerator that must fail."""
    with attached():  # first: autograd learns of devices before its first backward pass
        there = {case: trained(case, DEVICE) for case in cases}
        try:
            torch.ones(2) + torch.ones(2, device=DEVICE)
            refused = ""
        except AssertionError as error:
            refused = str(error)
    here = {case: trained(case, "cpu") for case in cases}
    print(json.dumps({"here": here, "there": there, "refused": refused}))


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))
    sys.stdout.flush()
    os._exit(0)  # autograd's thread of a backend in Python does not end
