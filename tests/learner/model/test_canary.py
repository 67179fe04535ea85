"""The canary: log-probs of fixed tokens, in the manifest of weights and on the wire."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.chassis.weights import file
from services.learner import server
from services.learner.model import canary, load
from services.learner.training.trainer_thread import TorchThread
from services.learner.weights.folder import WeightFolder
from tests.learner.in_memory_learner import recipe


def eager_logprobs(folder: Path, tokens: list[int]) -> np.ndarray[Any, Any]:
    """Return the log-probs of all tokens but the first, by transformers alone."""
    from transformers import AutoModelForCausalLM

    ids = torch.tensor(tokens)[None]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(
            input_ids=ids
        ).logits[0, :-1]
    logprobs = torch.log_softmax(logits, -1)[torch.arange(len(tokens) - 1), ids[0, 1:]]
    return np.array(logprobs.numpy())


def test_the_canary_is_a_teacher_forced_pass(tiny_folder: Path) -> None:
    manifest_canary = canary.of(load.load(tiny_folder), "float32")
    assert (
        len(manifest_canary["tokens"]) == canary.TOKENS == 32
        and manifest_canary["tolerance"] == canary.TOLERANCES["float32"]
    )
    expected = eager_logprobs(tiny_folder, manifest_canary["tokens"])
    assert np.abs(expected - manifest_canary["logprobs"]).max() < 1e-4
    shifted = eager_logprobs(tiny_folder, manifest_canary["tokens"][1:])
    assert np.abs(shifted - manifest_canary["logprobs"][1:]).max() > 0.01, (
        "a token that is dropped must show"
    )


def test_its_tokens_are_the_same_for_all_versions_and_within_the_vocabulary() -> None:
    assert canary.tokens(40).tolist() == canary.tokens(40).tolist()
    assert (
        canary.tokens(40).min() >= 0
        and canary.tokens(40).max() < 40
        and len(set(canary.tokens(40).tolist())) > 10
    )


@pytest.mark.parametrize("engine", ["vllm", "torch"])
async def test_it_goes_out_with_the_weights_where_the_engine_needs_it(
    tmp_path: Path, tiny_folder: Path, engine: str
) -> None:
    configured = recipe(1)
    configured = configured.model_copy(
        update={"resources": configured.resources.model_copy(update={"engine": engine})}
    )
    thread, folder = TorchThread(configured, 1), WeightFolder(tmp_path / "weights")
    try:
        await thread.load(tiny_folder, resumed=False)
        manifest = await thread.hand_out(folder, 1, 0)
    finally:
        await asyncio.to_thread(thread.done)
    if engine == "torch":
        assert manifest.canary is None and "canary" not in manifest.to_json()
        return
    assert manifest.canary is not None
    assert (
        np.abs(
            eager_logprobs(tiny_folder, manifest.canary["tokens"]) - manifest.canary["logprobs"]
        ).max()
        < 1e-4
    )
    assert file.open_verified(manifest.manifest_path) == manifest, "the file keeps it"
    first = next(server.pieces(folder, manifest.digest, 0))
    assert file.from_json(first.manifest_json, manifest.path).canary == manifest.canary, (
        "joined nodes get it"
    )
    assert folder.repeat(1, 1).canary == manifest.canary, "the same weights have the same canary"
