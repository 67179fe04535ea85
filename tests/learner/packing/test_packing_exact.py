"""The packed loss and its gradients equal those of the flattened paths, unless broken."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from banyan.view import TreeView
from services.learner.attention import mask
from services.learner.attention.cost_model import AttentionMethod
from services.learner.losses.aggregate import MODES
from services.learner.model import logprobs
from services.learner.model.load import forward, prepare
from services.learner.packing import packing, unroll
from tests.learner.flat_reference import Grads, flat_loss, packed

PROMPT = [3, 1, 4, 1, 5, 2]
LOOSE = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def exact(model: Any) -> Any:
    """Return the model with norms in its own precision, so that other orders of sums agree."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = lambda x, m=module: (
                m.weight * x * (x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon).rsqrt()
            )
    return model


def pieces_of(
    views: list[TreeView], advantages: list[np.ndarray], budget: int
) -> list[unroll.TreePart]:
    found = []
    for view, leaf_L in zip(views, advantages, strict=True):
        for run in unroll.divide(view, unroll.trained_leaves(leaf_L), budget):
            found.append(unroll.unroll(view, run, leaf_L, None, b"now"))
    return found


def packed_loss(
    model: Any,
    views: list[TreeView],
    advantages: list[np.ndarray],
    loss_settings: dict[str, Any],
    budget: int,
    name: str = "reinforce",
) -> tuple[float, Grads]:
    """Return loss and gradients of the trainer's own step, before clipping."""
    sequences = packing.pack(pieces_of(views, advantages, budget), budget)
    return packed(model, sequences, name, loss_settings)


def difference(a: Grads, b: Grads) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


@LOOSE
@given(
    seed=st.integers(0, 10**6),
    trees=st.integers(1, 4),
    segments=st.integers(1, 10),
    budget=st.sampled_from([12, 30, 400]),
    mode=st.sampled_from(MODES[:3]),
    name=st.sampled_from(["ppo-clip", "reinforce"]),
)
def test_packed_equals_flat(
    tiny_llama: Callable[..., Any],
    forest: Any,
    seed: int,
    trees: int,
    segments: int,
    budget: int,
    mode: str,
    name: str,
) -> None:
    rng = np.random.default_rng(seed)
    shared = rng.random() < 0.5  # prompts that begin alike become one trunk
    views = [
        forest.random(rng, segments, begin=PROMPT[: rng.integers(1, 7)] if shared else ())
        for _ in range(trees)
    ]
    advantages = [
        np.where(np.isfinite(v.rewards_L), rng.standard_normal(len(v.rewards_L)), np.nan)
        for v in views
    ]
    model = exact(tiny_llama(seed % 7))
    expected, flat = flat_loss(model, views, advantages, name, {"mode": mode})
    with pytest.MonkeyPatch.context() as patch:
        method = rng.choice([m for m in AttentionMethod if m is not AttentionMethod.BLOCK_MASK])
        patch.setattr(mask, "choose", lambda sequence, matmuls: method)
        got, packed = packed_loss(model, views, advantages, {"mode": mode}, budget, name)
    assert got == pytest.approx(expected, abs=1e-10)
    assert difference(flat, packed) < 1e-9


def test_prompts_that_begin_alike_are_computed_once(forest: Any) -> None:
    views = [forest.flat([1, 0], bytes([i]) * 32) for i in range(4)]
    parts = pieces_of(views, [np.ones(2)] * 4, 400)
    sequence = packing.pack(parts, 400)[0]
    assert sequence.trunk == 3
    assert sequence.token_U.tolist() == [1, 2, 3, *([5, 6, 6, 7] * 4)]
    # One place behind the trunk predicts all first tokens.
    assert sequence.place_R.tolist() == [2, *range(3, 19, 2)]
    apart = packing.pack(parts[:1], 400)[0]
    assert (apart.trunk, len(apart.token_U)) == (0, len(parts[0]))


def fixed(forest: Any, seed: int = 3) -> tuple[list[TreeView], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    views = [forest.random(rng, 9, begin=PROMPT[:4]) for _ in range(3)]
    return views, [
        np.where(np.isfinite(v.rewards_L), rng.standard_normal(len(v.rewards_L)), np.nan)
        for v in views
    ]


def test_a_leaking_mask_changes_the_loss(
    tiny_llama: Callable[..., Any], forest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, advantages = fixed(forest)
    model = exact(tiny_llama(1))
    expected, flat = flat_loss(model, views, advantages, "reinforce", {})
    monkeypatch.setattr(mask, "choose", lambda sequence, matmuls: AttentionMethod.PADDED)
    monkeypatch.setattr(
        mask,
        "visible",
        lambda enter, leave: torch.ones(len(enter), len(enter), dtype=torch.bool).tril(),
    )
    got, packed = packed_loss(model, views, advantages, {}, 400)
    assert abs(got - expected) > 1e-3
    assert difference(flat, packed) > 1e-3


def test_the_packed_neighbour_is_the_wrong_predictor(
    tiny_llama: Callable[..., Any], forest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, advantages = fixed(forest)
    model = exact(tiny_llama(1))
    expected, _ = flat_loss(model, views, advantages, "reinforce", {})

    def neighbour(view: Any, node: Any, starts: Any) -> int | None:
        return starts[node.index] - 1 if starts[node.index] else None

    monkeypatch.setattr(unroll, "_end_above", neighbour)
    got, _ = packed_loss(model, views, advantages, {}, 400)
    assert abs(got - expected) > 1e-3


def test_positions_along_the_pack_change_the_loss(
    tiny_llama: Callable[..., Any], forest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, advantages = fixed(forest)
    model = exact(tiny_llama(1))
    expected, _ = flat_loss(model, views, advantages, "reinforce", {})
    original = packing._sequence

    def shifted(parts: Any) -> packing.PackedSequence:
        sequence = original(parts)
        sequence.position_U[:] = np.arange(len(sequence.position_U))
        return sequence

    monkeypatch.setattr(packing, "_sequence", shifted)
    got, _ = packed_loss(model, views, advantages, {}, 400)
    assert abs(got - expected) > 1e-3


def path_values(model: Any, view: TreeView) -> dict[tuple[int, ...], list[float]]:
    leaves = list(range(len(view.leaves_L)))
    sequence = packing.pack(
        [unroll.unroll(view, leaves, np.zeros(len(leaves)), None, b"now")], 400
    )[0]
    with torch.no_grad():
        logp = forward(model, sequence).logp_E
    values = logp[torch.from_numpy(sequence.index_P_T)].numpy()
    keys = [
        tuple(view.tree.prefix_tokens(view.leaves_L[i].segment, view.leaves_L[i].end).tolist())
        for i in leaves
    ]
    return {k: v[m].tolist() for k, v, m in zip(keys, values, sequence.mask_P_T, strict=True)}


def test_a_siblings_tokens_do_not_reach_the_other_branch(
    tiny_llama: Callable[..., Any], forest: Any
) -> None:
    from banyan.segment import Kind
    from banyan.tree import Leaf, Tree

    def build(first: list[int], second: list[int], order: tuple[int, int]) -> TreeView:
        tree = Tree(b"s" * 32)
        root = forest.segment(tree, None, [1, 2, 3], kind=Kind.PROMPT)
        branches = [
            forest.segment(tree, root, tokens, ordinal=o)
            for tokens, o in zip((first, second), order, strict=True)
        ]
        leaves = [Leaf(s.id, len(s)) for s in branches]
        return TreeView(tree, leaves, dict.fromkeys(leaves, 1.0))

    model = prepare(tiny_llama(2))
    key = (1, 2, 3, 7, 8, 9)
    first = path_values(model, build([4, 5, 6], [7, 8, 9], (0, 1)))[key]
    changed = path_values(model, build([30, 31, 32], [7, 8, 9], (0, 1)))[key]
    swapped = path_values(model, build([4, 5, 6], [7, 8, 9], (1, 0)))[key]
    np.testing.assert_allclose(first, changed, atol=1e-12)
    np.testing.assert_allclose(first, swapped, atol=1e-12)


def test_many_chunks_equal_one_and_so_do_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    hidden = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(17, 8, dtype=torch.float64, requires_grad=True)
    readout_E = torch.from_numpy(np.sort(np.concatenate([np.arange(11), rng.integers(0, 11, 9)])))
    token_E = torch.from_numpy((np.arange(20) * 3) % 17)
    temperature = torch.from_numpy(rng.random(11) + 0.5)

    def reference(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (h @ w.t() / temperature[:, None]).log_softmax(1)[readout_E, token_E]

    def entropies(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        logp = (h @ w.t() / temperature[:, None]).log_softmax(1)
        return -(logp.exp() * logp).sum(1)

    def ours(h: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return logprobs._TokenLogProbs.apply(h, w, temperature, readout_E, token_E)

    for chunk, kept in ((10**6, 10**6), (3 * 17, 10**6), (3 * 17, 0)):
        monkeypatch.setattr(logprobs, "CHUNK_NUMBERS", chunk)
        monkeypatch.setattr(logprobs, "KEPT_NUMBERS", kept)
        found = ours(hidden, weight)
        torch.testing.assert_close(found[0], reference(hidden, weight))
        torch.testing.assert_close(found[1], entropies(hidden, weight))
        assert torch.autograd.gradcheck(ours, (hidden, weight))
        for side in (0, 1):
            assert torch.autograd.gradcheck(
                lambda h, w, side=side: ours(h, w)[side], (hidden, weight)
            )


def test_a_sliding_window_is_measured_along_the_path(
    tiny_llama: Callable[..., Any], forest: Any
) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=3,
        initializer_range=0.3,
    )
    model = exact(MistralForCausalLM(config).double().eval())
    views, advantages = fixed(forest)
    expected, flat = flat_loss(model, views, advantages, "reinforce", {})
    got, packed = packed_loss(model, views, advantages, {}, 60)
    assert got == pytest.approx(expected, abs=1e-10)
    assert difference(flat, packed) < 1e-9


def test_temperature_divides_the_logits(tiny_llama: Callable[..., Any], forest: Any) -> None:
    warm = type(forest)(temperature=0.6)
    views, advantages = fixed(warm)
    model = exact(tiny_llama(0))
    expected, flat = flat_loss(model, views, advantages, "reinforce", {})
    got, packed = packed_loss(model, views, advantages, {}, 60)
    assert got == pytest.approx(expected, abs=1e-10)
    assert difference(flat, packed) < 1e-9
    cold, _ = packed_loss(model, *fixed(type(forest)(temperature=1.0)), {}, 60)
    assert abs(cold - expected) > 1e-3
