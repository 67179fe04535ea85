"""Whether the engine computes what transformers' eager attention does: a few tokens sampled through its own port at load.

A path alone: its prompt in chunks, then one token at a time. Then branches of the same prompt, which is kept: they share its
KV where the model allows it, else each has a copy. Then paths of different lengths, which attend apart from each other.
Pages are so short that a path has several. What was sampled is scored again by plain eager passes, and by the engine's own
teacher-forced pass.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from transformers import PreTrainedModel

from banyan.policy import PolicyVersion
from banyan.segment import Floats, IntTokens, Sampling
from services.chassis.model_checks import eager_pass
from services.chassis.model_checks.sharpened import LOW, sharpened
from services.rollout.engines.port import Request, Sampled
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import Limits

READER = "the torch engine"
_BRANCHES = 3
_CHUNK = 8  # tokens of the prompt at a time
_KV_TOKENS = 1024
_PAGE = 4  # tokens: a prompt has several, and a decoded token begins one


class _Endless:
    """A tokenizer of a model that never ends; no text is asked of it."""

    eos: frozenset[int] = frozenset()

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        raise NotImplementedError

    def encode(self, text: str) -> IntTokens:
        raise NotImplementedError

    def decode(self, tokens: IntTokens) -> str:
        raise NotImplementedError


def checked(model: PreTrainedModel, deterministic: bool = False) -> Forward:
    """What runs a model. Raises NotReady where the engine computes another one. Nothing of the check is left behind.

    A model of low precision is looked at closely, cut and in float32, and as it is for gross faults.
    """
    with eager_pass.named(model, READER):
        forward = Forward(model)
        with eager_pass.short_windows(model):
            if model.dtype in LOW:
                _check_closely(forward, deterministic)
            _check(forward, deterministic)
    forward.states = None
    return forward


def _check_closely(forward: Forward, deterministic: bool) -> None:
    try:
        with sharpened(forward.model):
            forward.look()
            _check(forward, deterministic)
    finally:
        forward.look()


def _check(forward: Forward, deterministic: bool) -> None:
    model = forward.model
    limits = Limits(
        _KV_TOKENS, _BRANCHES + 1, _CHUNK, deterministic, share_from=1, page_tokens=_PAGE, waste=0
    )
    engine = TorchEngine(forward, _Endless(), limits, PolicyVersion(0, 0, b""))
    prompt_P = eager_pass.prompt(model)
    lengths = [prompt_P[:n] for n in (len(prompt_P), len(prompt_P) // 2, _PAGE - 1)]
    prompts = [prompt_P] * (1 + _BRANCHES) + lengths
    sampled = [
        s
        for some in (prompts[:1], prompts[1 : -len(lengths)], lengths)
        for s in _sampled(engine, some)
    ]
    paths = [
        np.concatenate((prompt, one.tokens_T)) for prompt, one in zip(prompts, sampled, strict=True)
    ]
    again_T = engine.logprobs(paths[0], len(prompt_P), 1.0)
    found = eager_pass.logprobs(model, paths)
    expected = [found_T[len(prompt) - 1 :] for prompt, found_T in zip(prompts, found, strict=True)]
    said: list[Floats] = [one.logprobs_T for one in sampled]
    pairs = list(zip(said, expected, strict=True))
    alone, truth = pairs[0]
    eager_pass.compare(
        model,
        READER,
        {
            "prefill": [(alone[:1], truth[:1])],
            "one-token decode": [(alone[1:], truth[1:])],
            "a trunk that branches share": pairs[1 : -len(lengths)],
            "paths of different lengths": pairs[-len(lengths) :],
            "a teacher-forced pass": [(again_T, truth)],
        },
    )


def _sampled(engine: TorchEngine, prompts: Sequence[IntTokens]) -> list[Sampled]:
    """A branch of each prompt, in order."""
    for branch, prompt_P in enumerate(prompts):
        sampling = Sampling(max_new_tokens=eager_pass.ANSWER)
        engine.submit(
            Request(
                branch, prompt_P, 10 * len(prompts) + branch, sampling, keep=True, order=(branch,)
            )
        )
    ended: list[Sampled] = []
    while engine.busy:
        ended += engine.step()
    return sorted(ended, key=lambda one: int(str(one.key)))
