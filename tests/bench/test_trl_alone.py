"""Our step without sharing: the same answers and gradients, with each path's own prompt."""

from typing import Any

import numpy as np
import pytest
import torch

from banyan import registry
from banyan.credit.estimate import ScoredTree
from banyan.policy import PolicyVersion
from banyan.recipe import Optimise
from bench.rivals import oneprocess
from bench.rivals.flattened import Shape, tree
from bench.trl.alone import alone
from services.learner import losses
from services.learner.losses.aggregate import totals_of
from services.learner.model.load import forward, prepare
from services.learner.packing.loss_targets import PATHS
from services.learner.packing.packing import PackedSequence
from services.learner.training import gather
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import Limits
from tests.rollout.conftest import Letters, ask, finish, prompt, tiny_llama

PROMPTS, WIDTH, NEW = 3, 4, 6


def sampled() -> tuple[dict[Any, list[int]], Any]:
    tokenizer = Letters()
    tokenizer.eos = frozenset()
    engine = TorchEngine(Forward(tiny_llama()), tokenizer, Limits(), PolicyVersion(1, 0, b"p"))
    head = prompt(12)
    prefixes = [np.concatenate((head, prompt(5 + p))) for p in range(PROMPTS)]
    asked = [
        ask((p, b), prefixes[p], 10 * p + b, max_new_tokens=NEW)
        for p in range(PROMPTS)
        for b in range(WIDTH)
    ]
    return {
        key: item.tokens_T.tolist() for key, item in finish(engine, asked).items()
    }, engine.stats()


def test_the_engine_prefills_each_path_alone_and_samples_the_same() -> None:
    shared, few = sampled()
    with alone():
        apart, many = sampled()
    assert apart == shared and len(apart) == PROMPTS * WIDTH
    tokens = sum(12 + 5 + p for p in range(PROMPTS))
    assert (many.prefilled_tokens, many.cached_tokens) == (tokens * WIDTH, 0)
    assert few.prefilled_tokens < tokens
    assert sampled()[1].prefilled_tokens == few.prefilled_tokens, "sharing is back"


def lesson(budget: int) -> Any:
    groups = []
    for number in range(3):
        grown, leaves = tree(Shape(7, 4, 3), number)
        groups.append(
            (
                str(number),
                [ScoredTree(grown, leaves, {leaf: float(i % 2) for i, leaf in enumerate(leaves)})],
            )
        )
    settings = Optimise()
    estimator = registry.build("optimise", settings.advantage, settings.advantage_settings)
    return oneprocess.build_lesson(
        groups, estimator, lambda tree, leaf: False, b"now", budget, targets=PATHS
    )


@pytest.fixture(scope="module")
def small() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    make: Any = LlamaForCausalLM
    return prepare(make(LlamaConfig(vocab_size=49_152, **sizes)).double())


def gradients(model: Any, rows: list[PackedSequence]) -> list[torch.Tensor]:
    for parameter in model.parameters():
        parameter.grad = None
    loss, totals = losses.build("ppo-clip", {}), totals_of(rows)
    for row in rows:
        loss.compute(gather.tokens(row, forward(model, row)), totals)[0].backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("budget", "rows"), [(4096, 1), (40, 3)])
def test_the_learner_trains_whole_paths_with_the_same_gradients(
    small: Any, budget: int, rows: int
) -> None:
    with alone():
        flat = lesson(budget)
        apart = gradients(small, flat.sequences)
    shared = lesson(budget)
    assert len(flat.sequences) >= rows and all(row.trunk == 0 for row in flat.sequences)
    assert (
        sum(len(row.token_U) for row in flat.sequences)
        == 3 * 4 * (7 + 3)
        == flat.metrics["path_tokens"]
    )
    assert sum(len(row.token_U) for row in shared.sequences) == 3 * (7 + 4 * 3)
    together = gradients(small, shared.sequences)
    assert max(float((a - b).abs().max()) for a, b in zip(apart, together, strict=True)) < 1e-6
    assert max(float(a.abs().max()) for a in apart) > 1e-3
