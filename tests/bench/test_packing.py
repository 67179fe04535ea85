"""`bench packing` times equal gradients both ways, beside a bound that hand arithmetic confirms."""

import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench import gpu, packing
from bench.rivals.flattened import VOCABULARY, Rivals, Shape, kept
from services.learner.model.load import prepare


@pytest.fixture(scope="module")
def small() -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    make: Any = LlamaForCausalLM
    return prepare(make(LlamaConfig(vocab_size=VOCABULARY, **sizes)).double())


@pytest.mark.parametrize("shape", [Shape(9, 3, 4), Shape(5, 2, 3, depth=3)])
def test_both_ways_have_the_same_gradients(small: Any, shape: Shape) -> None:
    rivals = Rivals(small, shape)
    result = []
    for way in (rivals.packed, lambda: rivals.flattened(2)):
        rivals.forget()
        way()
        result.append([p.grad.clone() for p in small.parameters() if p.grad is not None])
    assert len(result[0]) == len(list(small.parameters()))
    assert (
        max(float((a - b).abs().max()) for a, b in zip(*result, strict=True)) < 1e-6
    )  # norms are in float32
    assert max(float(a.abs().max()) for a in result[0]) > 1e-3


def test_the_bound_of_a_small_tree(small: Any) -> None:
    """2 x 2 x 1: 4 unique tokens for 6, one place that predicts two, pairs 3 + 2·1 + 2·2 = 9 for
    2·6."""
    body = 4 * 16 * 16 + 3 * 16 * 24
    head = VOCABULARY * 16

    def work(tokens: int, places: int, pairs: int) -> int:
        return body * tokens + head * places + 2 * 16 * pairs

    assert Rivals(small, Shape(2, 2, 1)).bound == pytest.approx(work(6, 2, 12) / work(4, 1, 9))


def test_shapes() -> None:
    assert (Shape(512, 16, 64).unique, Shape(512, 16, 64).length, Shape(512, 16, 64).leaves) == (
        1536,
        576,
        16,
    )
    assert (Shape(64, 2, 32, depth=4).unique, Shape(64, 2, 32, depth=4).leaves) == (
        64 + 30 * 32,
        16,
    )


def test_what_is_kept_is_counted(small: Any) -> None:
    few, many = (Rivals(small, Shape(8, 2, new)) for new in (2, 32))
    assert 0 < kept(small, few.packed) < kept(small, many.packed)


def test_both_sides_are_timed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both run as often, in turn, each time after an untimed run that clears traces of the
    other."""
    clock, order = [0.0], ""

    def side(name: str, first: float, second: float) -> Any:
        def run() -> None:
            nonlocal order
            clock[0] += second if order.endswith(name) else first
            order += name

        return run

    monkeypatch.setattr(packing.time, "perf_counter", lambda: clock[0])
    ours, theirs = packing.in_turn(side("p", 5.0, 1.0), side("f", 50.0, 6.0))
    assert order == "ppff" * packing.RUNS
    assert ours == [1.0] * packing.RUNS and theirs == [6.0] * packing.RUNS


def test_without_cuda_the_gpu_bench_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(SystemExit, match="sees no CUDA device"):
        gpu.run()
