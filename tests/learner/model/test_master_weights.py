"""Masters add up the gradients of sequences, and go when their trainer goes."""

import gc
import weakref

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from services.learner.model.master_weights import Masters


def model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def backward(trained: LlamaForCausalLM, token: int) -> None:
    trained(input_ids=torch.tensor([[token, 1]])).logits.float().sum().backward()


def test_gradients_of_two_sequences_are_added_in_float32() -> None:
    def gradients(*tokens: int) -> list[torch.Tensor]:
        trained = model()
        masters = Masters(trained, torch.bfloat16)
        masters.clear()
        for token in tokens:
            backward(trained, token)
        return masters.gradients()

    apart = zip(gradients(2), gradients(3), gradients(2, 3), strict=True)
    for first, second, both in apart:
        assert both.dtype == torch.float32
        torch.testing.assert_close(first + second, both)
    assert any(gradient.any() for gradient in gradients(2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_goes_with_its_masters(dtype: torch.dtype) -> None:
    trained = model()
    masters = Masters(trained, dtype)
    backward(trained, 2)
    alive = weakref.ref(trained), weakref.ref(masters)
    del trained, masters
    gc.collect()
    assert [one() for one in alive] == [None, None]
