"""Policies that are adapters, in the vllm engine: log-probs, distinction and refusals."""

import asyncio

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from services.chassis.weights import file
from services.rollout.engines.vllm_engine import adapter as vllm_adapter
from services.rollout.engines.vllm_engine import params as vllm_params
from tests.engines.rig import BASE, OTHER, TOLERANCE, ask, finish, gap, model, of, prompt, taught

RANK, ALPHA = 4, 8
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CLEAR = 10 * TOLERANCE


def adapter(rig, seed, rank=RANK):
    """Return a policy that is an adapter with a random B, and the model with it merged."""
    merged, draws, tensors = model(BASE), torch.Generator().manual_seed(seed), {}
    for name, layer in merged.named_modules():
        if name.rpartition(".")[2] in MATRICES:
            a, b = (
                torch.randn(*shape, generator=draws) * 0.1
                for shape in ((rank, layer.in_features), (layer.out_features, rank))
            )
            tensors |= {
                f"base_model.model.{name}.lora_{which}.weight": t
                for which, t in (("A", a), ("B", b))
            }
            layer.weight += ALPHA / rank * b @ a
    said = {"r": rank, "lora_alpha": ALPHA, "target_modules": list(MATRICES), "bias": "none"}
    folder = rig.folder / f"adapter-{seed}-{rank}"
    tokens = prompt(32, 9)
    bird = {
        "tokens": tokens.tolist(),
        "logprobs": of(taught(merged, tokens[:1], tokens[1:]), tokens[1:]).tolist(),
    }
    bird["tolerance"] = 0.01
    manifest = file.write(
        folder, f"policy-1-{seed}", tensors, 1, seed, "float32", canary=bird, adapter=said
    )
    return PolicyVersion(1, seed, manifest.digest), manifest.manifest_path, merged


def test_an_adapter_is_its_merged_weights(lora):
    """Also the next one: its KV is its own, and the canary tells it from the one before."""
    before = lora.engine.stats().unproven
    for seed in (11, 12):
        policy, path, merged = adapter(lora, seed)
        lora.engine.load(policy, path)
        requests = [ask((seed, b), prompt(70), b) for b in range(6)]
        ended = finish(lora.engine, requests)
        assert {s.policy for s in ended.values()} == {policy}
        assert max(gap(merged, ended[r.key], r) for r in requests) < TOLERANCE
        assert min(gap(model(BASE), ended[r.key], r) for r in requests) > CLEAR
        assert max(s.cached_tokens for s in ended.values()) == 64, "siblings share the trunk"
    assert lora.engine.stats().unproven == before + 1, "of the first nothing is known before it"


def test_what_runs_is_cut_and_goes_on_under_the_next_adapter(lora):
    (one, path_one, merged_one), (two, path_two, merged_two) = adapter(lora, 21), adapter(lora, 22)
    lora.engine.load(one, path_one)
    request = ask(0, prompt(40), max_new_tokens=300)
    lora.engine.submit(request)
    for _ in range(40):
        lora.engine.step()
    (cut,) = lora.engine.load(two, path_two)
    assert cut.policy == one and len(cut.tokens_T) and gap(merged_one, cut, request) < TOLERANCE
    on = ask(1, np.concatenate((prompt(40), cut.tokens_T)))
    found = finish(lora.engine, [on])[1]
    assert gap(merged_two, found, on) < TOLERANCE and gap(merged_one, found, on) > CLEAR


def test_two_adapters_interleave_in_one_batch(lora, tmp_path):
    core, loop = lora.engine._core, lora.engine._loop
    named = []
    for seed in (31, 32):
        policy, path, merged = adapter(lora, seed)
        (tmp_path / str(seed)).mkdir()
        folder = vllm_adapter.write(vllm_adapter.read(path), path, tmp_path / str(seed))
        named.append((vllm_adapter.request(policy, folder), policy.digest.hex(), merged))

    async def one(at):
        lora_request, salt, _ = named[at % 2]
        params = vllm_params.sampling_params(ask(at, prompt(40), at), frozenset())
        return vllm_params.read_output(
            await core.ask(prompt(40).tolist(), salt, params, adapter=lora_request)
        )

    async def together():
        return await asyncio.gather(*(one(at) for at in range(8)))

    for at, said in enumerate(loop.run_until_complete(together())):
        tokens = np.array(said.tokens, np.int32)
        own, other = (
            of(taught(named[which % 2][2], prompt(40), tokens), tokens) for which in (at, at + 1)
        )
        assert (
            np.abs(own - said.logprobs_T).max() < TOLERANCE
            and np.abs(other - said.logprobs_T).max() > CLEAR
        )


def test_adapters_that_do_not_fit_change_nothing(lora, vllm):
    policy, path, _ = adapter(lora, 41, rank=8)
    with pytest.raises(InvalidInput, match="rank 8, and vLLM was started for at most 4"):
        lora.engine.load(policy, path)
    with pytest.raises(InvalidInput, match="whole weights, and vLLM was started for adapters"):
        lora.engine.load(*lora.policy(OTHER))
    policy, path, merged = adapter(lora, 42)
    with pytest.raises(InvalidInput, match=r"at most 0.*lora_rank"):
        vllm.engine.load(policy, path)
    shapes = {"model.layers.0.self_attn.q_proj.weight": (64, 128)}
    with pytest.raises(InvalidInput, match=r"no adapter of a matrix|instead of"):
        vllm_adapter.check(vllm_adapter.read(path), path, shapes, 4)
    lora.engine.load(policy, path)
    request = ask(0, prompt(9))
    assert gap(merged, finish(lora.engine, [request])[0], request) < TOLERANCE
