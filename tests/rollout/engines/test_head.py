"""The learned head: its arithmetic, its place in the weight file, its scores in the engine."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput
from banyan.policy import PolicyVersion
from banyan.signals import Wanted
from services.chassis.weights import file
from services.chassis.weights import value_head as heads
from services.chassis.weights.value_head import ValueHead
from services.rollout.engines.torch_engine import loading, weight_check
from services.rollout.engines.vllm_engine import params
from tests.rollout.conftest import ask, finish, prompt, tiny_llama

SIZE = 32  # of the tiny model's states


def learned(seed: int = 3, heard: bool = True) -> ValueHead:
    """Return a head with non-zero weights, calibrated by a bent line."""
    torch.manual_seed(seed)
    head = ValueHead(SIZE, 16, 4)
    head.raw_B.copy_(torch.tensor([0.1, 0.4, 0.6, 0.8]))
    head.right_B.copy_(torch.tensor([0.05, 0.2, 0.7, 0.95]))
    head.heard.fill_(float(heard))
    for parameter in head.parameters():
        parameter.data.mul_(4.0)
    return head.requires_grad_(False)


def published(folder, model, head, dtype="float32", step=1):
    tensors = {**model.state_dict(), **heads.tensors(head)}
    manifest = file.write(folder, f"policy-1-{step}", tensors, 1, step, dtype)
    return PolicyVersion(1, step, manifest.digest), manifest.manifest_path


def states(model, path, places):
    """Return last-layer states by one plain pass with transformers' own attention."""
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            ids = torch.tensor(path, dtype=torch.long)[None]
            return model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, places]
    finally:
        model.set_attn_implementation(own)


def scoring(key, prefix, draw=1, **more):
    return replace(ask(key, prefix, draw, **more), signals=Wanted(head=True))


def test_the_head_is_what_its_formula_says():
    head, h = learned(), torch.randn(5, SIZE, generator=torch.Generator().manual_seed(0))
    normed = (h - h.mean(1, keepdim=True)) / (h.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    normed = normed * head.norm.weight + head.norm.bias
    up = normed @ head.up.weight.T + head.up.bias
    gelu = up * 0.5 * (1 + torch.erf(up / 2**0.5))
    q = 1 / (1 + torch.exp(-(gelu @ head.down.weight.T + head.down.bias)))[:, 0]
    assert torch.allclose(head.logits(h).sigmoid(), q, atol=1e-6) and float(q.std()) > 0.05
    expected = np.interp(q.numpy(), head.raw_B.numpy(), head.right_B.numpy())
    assert np.allclose(head(h).numpy(), expected, atol=1e-6)


def test_a_fresh_head_is_calibrated_by_nothing_and_not_heard(tmp_path):
    head = ValueHead(SIZE, 16, 10)
    raw = torch.linspace(0.0, 1.0, 101)
    assert torch.allclose(head.calibrated(raw), raw, atol=1e-6)
    model = tiny_llama()
    _, path = published(tmp_path, model, head)
    assert loading.load_weights(model, path) is None


def test_points_at_one_place_are_a_step():
    head = ValueHead(SIZE, 16, 4)
    head.raw_B.copy_(torch.tensor([0.3, 0.5, 0.5, 0.5]))
    head.right_B.copy_(torch.tensor([0.0, 0.2, 0.4, 1.0]))
    said = head.calibrated(torch.tensor([0.0, 0.4, 0.4999, 0.5001, 0.6]))
    assert torch.allclose(said, torch.tensor([0.0, 0.1, 0.2, 1.0, 1.0]), atol=1e-3)


def test_the_head_lies_in_the_weight_file_in_float32_and_is_digested_with_it(tmp_path):
    model = tiny_llama()
    one, path = published(tmp_path, model, learned(), "bfloat16")
    two, _ = published(tmp_path, model, learned(4), "bfloat16", step=2)
    bare = file.write(tmp_path, "bare", model.state_dict(), 1, 3)
    assert len({one.digest, two.digest, bare.digest}) == 3
    held = file.read_tensors(file.open_verified(path))
    for name, tensor in learned().state_dict().items():
        assert (
            torch.equal(held[file.HEAD + name], tensor)
            and held[file.HEAD + name].dtype is torch.float32
        )
    assert held["model.norm.weight"].dtype is torch.bfloat16
    weight_check.check(path, {name: tuple(t.shape) for name, t in model.state_dict().items()})


def test_an_unusable_head_is_refused_by_name(tmp_path):
    model = tiny_llama()
    odd = {**heads.tensors(learned())}
    odd.pop(file.HEAD + "norm.bias")
    broken = file.write(tmp_path, "broken", {**model.state_dict(), **odd}, 1, 1)
    with pytest.raises(
        InvalidInput, match=r"learned head in .*broken.json is unusable.*norm\.bias"
    ):
        loading.load_weights(model, broken.manifest_path)
    other = ValueHead(SIZE + 1, 4, 4)
    other.heard.fill_(1.0)
    foreign = file.write(tmp_path, "foreign", {**model.state_dict(), **heads.tensors(other)}, 1, 1)
    with pytest.raises(InvalidInput, match="reads states of 33 numbers, the model's have 32"):
        loading.load_weights(model, foreign.manifest_path)


@pytest.mark.parametrize(
    "limits", [{}, {"max_branches": 3}, {"prefill_tokens": 8}, {"deterministic": True}]
)
def test_the_engine_scores_the_state_that_each_token_was_drawn_from(make_engine, tmp_path, limits):
    model, head = tiny_llama(), learned()
    engine = make_engine(model, **limits)
    engine.load(*published(tmp_path, model, head))
    requests = [
        scoring((n, b), prompt(n), 7 * n + b, max_new_tokens=m)
        for n, m in ((5, 9), (17, 4), (30, 6))
        for b in (0, 1)
    ]
    requests += [ask("silent", prompt(17), 3), replace(scoring("forced", prompt(9)), forced=(5, 6))]
    ended = finish(engine, requests)
    assert not ended["silent"].signals
    gaps, shifted = [], []
    for request in requests[:6] + requests[7:]:
        one = ended[request.key]
        path = np.concatenate((request.prefix_P, one.tokens_T))
        at = np.arange(len(request.prefix_P) - 1, len(path) - 1)
        assert len(one.signals.head_T) == len(one.tokens_T)
        gaps.append(np.abs(head(states(model, path, at)).numpy() - one.signals.head_T).max())
        shifted.append(np.abs(head(states(model, path, at + 1)).numpy() - one.signals.head_T).max())
    assert max(gaps) < 1e-3, "half floats"
    assert max(shifted) > 0.05, "the state after the token must show"


def test_a_score_changes_no_token_and_a_new_head_is_heard_at_once(make_engine, tmp_path):
    model = tiny_llama()
    engine = make_engine(model)
    engine.load(*published(tmp_path, model, learned(heard=False)))
    silent = finish(engine, [scoring(0, prompt(11))])[0]
    assert not silent.signals
    said = []
    for step, seed in ((2, 3), (3, 4)):
        engine.load(*published(tmp_path, model, learned(seed), step=step))
        one = finish(engine, [scoring(0, prompt(11))])[0]
        assert (
            one.tokens_T.tolist() == silent.tokens_T.tolist()
            and one.logprobs_T.tolist() == silent.logprobs_T.tolist()
        )
        said.append(one.signals.head_T.tolist())
    assert said[0] != said[1]


def test_vllm_refuses_the_signal_by_name():
    with pytest.raises(
        InvalidInput, match="signal `head` needs the model's states, which vLLM hides"
    ):
        params.check(scoring(0, prompt(4)))
