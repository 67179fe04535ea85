"""Engine and learner on each family.

They compute the same as transformers' eager attention, or refuse the family by name.
"""

import numpy as np
import pytest

from banyan.errors import NotReady
from banyan.policy import PolicyVersion
from services.learner.model import attention_check as of_learner
from services.learner.model import load as models
from services.rollout.engines.torch_engine import attention_check as of_engine
from services.rollout.engines.torch_engine import loading
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import Limits
from tests.engines.families import FAMILIES, VOCABULARY, made
from tests.rollout.conftest import Letters, ask, finish, forced

REFUSED_BY_ENGINE = {
    "gemma4": "model type gemma4_text caches layers of 2 shapes",
    "doge": "model type 'doge': DogeAttention attends with attention_mask = float32 numbers of"
    " shape",
    "llama4": "model type llama4_text has chunked_attention layers",
    "mimo2": "model type mimo_v2_flash caches layers of 2 shapes",
    "minimax": "model type minimax has linear_attention layers",
    "falcon-alibi": "model type 'falcon': the torch engine cannot run it",
    "bloom": "model type 'bloom': the torch engine cannot run it",
    "gpt-neo": r"model type 'gpt_neo': the torch engine computes another model .*"
    r" one-token decode differs by 0\.\d+ nats",
}
REFUSED_BY_LEARNER = {
    "phi": "PhiForCausalLM has a biased or no output layer",
    "minicpm3": "model type 'minicpm3' sets logits_scaling",
    "nemotron": "model type 'nemotron': NemotronAttention does not hand `tree=` to its attention",
    "doge": "model type 'doge': DogeAttention attends with attention_mask = float32 numbers of"
    " shape",
    "llama4": "model type 'llama4_text': the learner cannot run it",
    "gpt-j": "GPTJForCausalLM has a biased or no output layer",
}


@pytest.mark.parametrize("case", FAMILIES)
def test_the_engine_is_exact_or_says_why_not(case: str) -> None:
    model = loading.with_attention(made(case))
    if case not in REFUSED_BY_ENGINE:
        of_engine.checked(model)
        return
    with pytest.raises(NotReady, match=REFUSED_BY_ENGINE[case]):
        of_engine.checked(model)


@pytest.mark.parametrize("case", FAMILIES)
def test_the_learner_is_exact_or_says_why_not(case: str) -> None:
    if case not in REFUSED_BY_LEARNER:
        of_learner.check(models.prepare(made(case)))
        return
    with pytest.raises(NotReady, match=REFUSED_BY_LEARNER[case]):
        of_learner.check(models.prepare(made(case)))


@pytest.mark.parametrize("case", ["gemma2", "gpt-oss", "mistral", "deepseek3", "diffllama", "mpt"])
def test_log_probs_of_longer_trees_are_those_of_eager_passes(case: str) -> None:
    model, tokenizer = loading.with_attention(made(case)), Letters()
    tokenizer.eos = frozenset()
    engine = TorchEngine(
        Forward(model), tokenizer, Limits(prefill_tokens=16, share_from=1), PolicyVersion(1, 0, b"")
    )
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, n).astype(np.int32) for n in (40, 7)]
    first = [
        ask((p, b), prompts[p], 10 * p + b, keep=True, max_new_tokens=9 - b)
        for p in range(2)
        for b in range(3)
    ]
    ended = finish(engine, first)
    trunks = [
        np.concatenate((request.prefix_P, ended[request.key].tokens_T))[:-2]
        for request in first[::2]
    ]
    second = [
        ask((t, b, "on"), trunk, 100 + 10 * t + b, max_new_tokens=5)
        for t, trunk in enumerate(trunks)
        for b in range(2)
    ]
    ended |= finish(engine, second)
    for request in (*first, *second):
        own = ended[request.key]
        assert (
            np.abs(forced(model, request.prefix_P, own.tokens_T) - own.logprobs_T).max() < 1e-3
        ), request.key
