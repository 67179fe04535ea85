"""Steps of a learner on the host and on an accelerator, as JSON: reports, weights, canary by case.

`python -m tests.learner.accelerator_cases`: the accelerator stays registered with PyTorch, so it
gets a process of its own. Nothing is recomputed, because that asks PyTorch for more of a device
than this one has.
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
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from banyan.recipe import Lora, Optimise
from services.chassis.weights import file
from services.learner.checkpoints import safetensors_writer
from services.learner.model import canary, load, lora
from services.learner.packing.head_observations import HeadObservations
from services.learner.packing.packing import PackedSequence
from services.learner.training.trainer import Trainer
from tests.learner.conftest import VOCABULARY, Forest
from tests.learner.fake_accelerator import DEVICE, attached
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


def sequences(case: str, step: int) -> list[PackedSequence]:
    """Return sequences of random trees; their observations for the head are made up."""
    packed = sequences_of(Forest(), step)
    if case != "head":
        return packed
    observations = HeadObservations(
        place_O=np.arange(4),
        label_O=np.array([0.0, 1.0, 0.0, 1.0]),
        kept_O=np.ones(4),
        recorded_O=np.full(4, np.nan),
    )
    return [replace(sequence, head_observations=observations) for sequence in packed]


def trainer_of(case: str, device: str) -> Trainer:
    """Return the trainer of a case."""
    optimise = Optimise(**{"learning_rate": 1e-3, **CASES[case]})
    policy = tiny()
    if isinstance(optimise.lora, Lora):
        policy = lora.attach(policy, optimise.lora, 0)
    frozen = tiny(1).requires_grad_(False).to(device) if case == "kl" else None
    dtype = torch.bfloat16 if case == "bfloat16" else torch.float32
    return Trainer(policy.to(device), optimise, dtype, 0, frozen)


def trained(case: str, device: str) -> dict[str, Any]:
    """Take two steps, restore a checkpoint, and take one more step."""
    first, second = trainer_of(case, device), trainer_of(case, device)
    reports = [asdict(first.step(sequences(case, step), step)) for step in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        safetensors_writer.write(Path(folder) / "moments", first.moments())
        safetensors_writer.write(Path(folder) / "weights", first.masters.exact())
        moments, weights = load_file(Path(folder) / "moments"), load_file(Path(folder) / "weights")
        masters = second.masters
        with torch.no_grad():
            for name, weight in zip(masters.names, masters.weights, strict=True):
                weight.copy_(weights[lora.stored_name(name) if masters.adapted else name])
        masters.copy_to_model()
        second.restore_moments(moments)
        reports.append(asdict(second.step(sequences(case, 2), 2)))
        manifest = file.write(Path(folder), "policy-1-3", second.published(), 1, 3, dtype="float32")
        tensors = file.read_tensors(manifest)
    sums = {name: tensor.double().sum().item() for name, tensor in tensors.items()}
    return {
        "reports": reports,
        "weights": sums,
        "canary": canary.of(second.model, "float32")["logprobs"],
    }


def main(cases: list[str]) -> None:
    """Print the results, and the error of a mixture of host and accelerator."""
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
