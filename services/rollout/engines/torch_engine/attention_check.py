"""Comparison of the engine with transformers' eager attention, on a few tokens sampled at load.

First, a path alone: its prompt in chunks, then one token at a time. Then branches of the same, kept
prompt: they share its KV where the model allows it, else each has a copy. Then paths of different
lengths, which attend apart from each other. Pages are so short that a path has several. The sampled
tokens are scored again by plain eager passes, and by the engine's own teacher-forced pass.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from transformers import PreTrainedModel

from banyan.environments.renderers import RendererSpec
from banyan.policy import PolicyVersion
from banyan.segment import IntTokens, Sampling
from services.chassis.model_checks import eager_pass
from services.chassis.model_checks.sharpened import LOW, sharpened
from services.chassis.renderers.port import Renderer
from services.rollout.engines.port import Request, Sampled
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import Limits

READER = "the torch engine"
_BRANCHES = 3
_CHUNK = 8  # tokens of the prompt at a time
_KV_TOKENS = 1024
_PAGE = 4  # tokens: a prompt has several pages, and a decoded token begins one


class _NoTokenizer:
    """A tokenizer without end tokens or texts."""

    eos: frozenset[int] = frozenset()

    def renderer(self, spec: RendererSpec) -> Renderer:
        raise NotImplementedError("nothing is answered here")

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        raise NotImplementedError

    def encode(self, text: str) -> IntTokens:
        raise NotImplementedError

    def decode(self, tokens: IntTokens) -> str:
        raise NotImplementedError


def checked(model: PreTrainedModel, deterministic: bool = False) -> Forward:
    """Return the forward passes of a model once they agree with eager attention.

    Raise NotReady where they do not. Nothing of the check is left behind. A model of low precision
    is checked closely, shortened and in float32, and as it is for gross faults.
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
            forward.inspect()
            _check(forward, deterministic)
    finally:
        forward.inspect()


def _check(forward: Forward, deterministic: bool) -> None:
    model = forward.model
    limits = Limits(
        kv_tokens=_KV_TOKENS,
        max_branches=_BRANCHES + 1,
        prefill_tokens=_CHUNK,
        deterministic=deterministic,
        share_from=1,
        page_tokens=_PAGE,
        waste=0,
    )
    engine = TorchEngine(forward, _NoTokenizer(), limits, PolicyVersion(0, 0, b""))
    prompt_P = eager_pass.prompt(model)
    siblings = [prompt_P] * _BRANCHES
    lengths = [prompt_P[:size] for size in (len(prompt_P), len(prompt_P) // 2, _PAGE - 1)]
    sampled: list[Sampled] = []
    for prompts in ([prompt_P], siblings, lengths):
        sampled += _sample(engine, prompts)
    prompts = [prompt_P, *siblings, *lengths]
    paths = [
        np.concatenate((prompt, segment.tokens_T))
        for prompt, segment in zip(prompts, sampled, strict=True)
    ]
    rescored_T = engine.logprobs(paths[0], len(prompt_P), 1.0)
    pairs = [
        (segment.logprobs_T, eager_T[len(prompt) - 1 :])
        for prompt, segment, eager_T in zip(
            prompts, sampled, eager_pass.logprobs(model, paths), strict=True
        )
    ]
    alone_T, expected_T = pairs[0]
    eager_pass.compare(
        model,
        READER,
        {
            "prefill": [(alone_T[:1], expected_T[:1])],
            "one-token decode": [(alone_T[1:], expected_T[1:])],
            "a trunk that branches share": pairs[1 : -len(lengths)],
            "paths of different lengths": pairs[-len(lengths) :],
            "a teacher-forced pass": [(rescored_T, expected_T)],
        },
    )


def _sample(engine: TorchEngine, prompts: Sequence[IntTokens]) -> list[Sampled]:
    """Sample a branch of each prompt, and return the segments in order."""
    for branch, prompt_P in enumerate(prompts):
        request = Request(
            key=branch,
            prefix_P=prompt_P,
            draw_key=10 * len(prompts) + branch,
            sampling=Sampling(max_new_tokens=eager_pass.ANSWER),
            keep=True,
            order=(branch,),
        )
        engine.submit(request)
    ended: list[Sampled] = []
    while engine.busy:
        ended += engine.step()
    return sorted(ended, key=lambda segment: int(str(segment.key)))
