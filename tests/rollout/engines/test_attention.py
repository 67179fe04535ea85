"""The engine's attention with soft caps and sinks, against their formulas; unknown keywords."""

import pytest
import torch

from banyan.errors import NotReady
from services.chassis.model_checks import attention_keywords
from services.rollout.engines.torch_engine import attention, attention_scores


class Layer(torch.nn.Module):
    """The attributes of a model's attention layer."""

    layer_idx = 0

    class config:
        model_type = "made-up"


def whole(query, key, value, seen, cap, sink_H):
    key, value = (
        x.double().repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value)
    )
    found = query.double() @ key.transpose(2, 3) * 0.3
    found = found if cap is None else cap * torch.tanh(found / cap)
    weight = found.masked_fill(~seen, float("-inf")).exp()
    total = weight.sum(-1, keepdim=True) + (
        0.0 if sink_H is None else sink_H.double()[:, None, None].exp()
    )
    return (weight / total @ value).transpose(1, 2)


@pytest.mark.parametrize("numbers", [1 << 25, 50])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("queries", [1, 5])
def test_caps_and_sinks_are_the_formula(monkeypatch, queries, cap, sinks, numbers):
    monkeypatch.setattr(attention_scores, "_NUMBERS", numbers)
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(2, 6, queries, 8),
        torch.randn(2, 3, 5, 8),
        torch.randn(2, 3, 5, 4),
    )
    seen = torch.arange(5) <= torch.arange(5 - queries, 5)[:, None]
    given = {"scaling": 0.3, "softcap": cap, "s_aux": torch.randn(6) if sinks else None}
    mask = seen[None, None].expand(2, 1, -1, -1)
    got, _ = attention.attend(Layer(), query, key, value, mask, **given)
    expected = whole(query, key, value, seen, cap, given["s_aux"])
    assert float((got.double() - expected).abs().max()) < 1e-5
    if queries == 5:
        causal, _ = attention.attend(Layer(), query, key, value, None, **given)
        assert float((causal.double() - expected).abs().max()) < 1e-5


def test_a_scale_of_zero_is_a_scale():
    query, key, value = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)
    got, _ = attention.attend(
        Layer(),
        query,
        key,
        value,
        torch.ones(1, 1, 1, 3, dtype=torch.bool),
        scaling=0.0,
        softcap=1.0,
    )
    assert torch.allclose(got[0, 0], value[0].mean(1), atol=1e-6)


FINE = {
    "position_ids": torch.arange(3),
    "use_cache": True,
    "is_causal": True,
    "anything": None,
    "output_attentions": False,
}
ODD = [
    (
        {"position_bias": torch.zeros(1, 2, 1, 3)},
        r"Layer attends with position_bias = float32 numbers of shape \(1, 2, 1, 3\)",
    ),
    ({"is_causal": False}, "is_causal = False"),
    ({"output_attentions": True}, "output_attentions = True"),
    ({"block_indices": [1, 2]}, r"block_indices = \[1, 2\]"),
]


@pytest.mark.parametrize(("given", "said"), ODD)
def test_what_is_not_known_is_refused_by_name(given, said):
    attention_keywords.check(Layer(), "this test", FINE)
    with pytest.raises(
        NotReady,
        match=f"model type 'made-up': .*{said}, which this test does not do; take another model",
    ):
        attention_keywords.check(Layer(), "this test", FINE | given)


def test_a_layer_that_looks_ahead_or_drops_out_is_refused():
    layer = Layer()
    attention_keywords.check(layer.eval(), "this test", {}, dropout=0.1)
    with pytest.raises(NotReady, match=r"dropout = 0\.1"):
        attention_keywords.check(layer.train(), "this test", {}, dropout=0.1)
    layer.is_causal = False
    with pytest.raises(NotReady, match="is_causal = False"):
        attention_keywords.check(layer, "this test", {})


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize(("given", "said"), ODD)
def test_the_engine_itself_refuses_what_it_does_not_know(given, said, queries):
    """The error reaches the caller of the attention, not only of the list of keywords."""
    query, key = torch.randn(1, 2, queries, 8), torch.randn(1, 2, 3, 8)
    mask = torch.ones(1, 1, queries, 3, dtype=torch.bool)
    attention.attend(Layer(), query, key, key, mask, **FINE)
    with pytest.raises(NotReady, match=f"{said}, which the torch engine does not do"):
        attention.attend(Layer(), query, key, key, mask, **FINE | given)


@pytest.mark.parametrize(("mask", "dropout"), [(torch.zeros(1, 1, 1, 3), 0.0), (None, 0.1)])
def test_the_engine_itself_refuses_masks_and_dropout_that_it_does_not_do(mask, dropout):
    query, key = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 3, 8)
    mask = torch.ones(1, 1, 1, 3, dtype=torch.bool) if mask is None else mask
    with pytest.raises(NotReady, match="which the torch engine does not do"):
        attention.attend(Layer().train(), query, key, key, mask, dropout=dropout)


@pytest.mark.parametrize(
    "mask", [torch.zeros(1, 1, 2, 2), torch.ones(1, 4, 2, 2, dtype=torch.bool)]
)
def test_a_mask_that_the_model_makes_of_ours_is_refused(mask):
    with pytest.raises(NotReady, match="attends with attention_mask = "):
        attention_keywords.check(Layer(), "this test", {}, mask=mask)
