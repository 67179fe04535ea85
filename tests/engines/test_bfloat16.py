"""Engines in bfloat16: no further from float32 than a plain bfloat16 pass, and unbiased."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from banyan.policy import PolicyVersion
from banyan.recipe import Resources
from services.rollout.engines.port import Engine, Request, Sampled
from services.rollout.engines.thread import Closing
from services.rollout.engines.torch_engine import loading
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import Limits
from services.rollout.engines.vllm_engine import start
from tests.engines.conftest import TORCH, VLLM
from tests.engines.rig import (
    BASE,
    BRANCHES,
    KV_TOKENS,
    OTHER,
    ask,
    finish,
    model,
    of,
    prompt,
    taught,
)
from tests.system.tiny import byte_tokenizer

RATIO, ERRORS = 1.5, 3.0
TOKENS = 2000


@dataclass
class Run:
    """Sampled segments, their requests, and a plain bfloat16 pass's log-probs of them."""

    requests: list[Request]
    ended: dict[object, Sampled]
    plain: np.ndarray


def quiet(seed: int) -> PreTrainedModel:
    """Return the rig's model with logits a quarter as large.

    The log-prob of a token drawn under an error of σ nats is too high by σ²/2, so a mean of 0 can
    only be required where σ is as small as in real models.
    """
    made = model(seed)
    made.model.norm.weight.mul_(0.25)
    return made


def torch_engine(folder: Path) -> Engine:
    made = loading.load_model(folder, torch.bfloat16, torch.device("cpu"))
    limits = Limits(kv_tokens=KV_TOKENS, max_branches=BRANCHES, context=512)
    return TorchEngine(
        Forward(made), loading.ChatTokenizer(folder, made), limits, PolicyVersion(1, 0, b"p0")
    )


def vllm_engine(folder: Path) -> Engine:
    resources = Resources(
        engine="vllm", kv_tokens=KV_TOKENS, max_branches=BRANCHES, dtype="bfloat16"
    )
    return start.build(folder, resources, 1, PolicyVersion(1, 0, b"p0"))


@pytest.fixture(scope="module", params=[TORCH, VLLM])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder: Path = tmp_path_factory.mktemp("bfloat16")
    quiet(BASE).save_pretrained(folder)
    byte_tokenizer(folder)
    engine = {"torch": torch_engine, "vllm": vllm_engine}[request.param](folder)
    engine.tokenizer.eos = frozenset()
    requests = [
        ask((n, b), prompt(n, 3), 50 * n + b, temperature=t, max_new_tokens=25)
        for n, t in ((11, 1.0), (40, 0.7), (63, 1.0), (90, 1.4))
        for b in range(20)
    ]
    ended = finish(engine, requests)
    if isinstance(engine, Closing):
        engine.close()
    plain_model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    plain = np.concatenate([logprobs(plain_model, r, ended[r.key]) for r in requests])
    return Run(requests, ended, plain)


def logprobs(
    reference: PreTrainedModel,
    request: Request,
    one: Sampled,
    drop: int | None = None,
    temperature: float | None = None,
) -> np.ndarray:
    """Return a segment's log-probs by one plain pass; `drop`: without that token of the prefix."""
    prefix = request.prefix_P if drop is None else np.delete(request.prefix_P, drop)
    return of(
        taught(reference, prefix, one.tokens_T, temperature or request.sampling.temperature),
        one.tokens_T,
    )


def off(run: Run, seed: int = BASE, **changed: float) -> np.ndarray:
    """Return the engine's log-probs minus those of a float32 pass."""
    reference = quiet(seed)
    expected = [logprobs(reference, r, run.ended[r.key], **changed) for r in run.requests]
    return np.concatenate([run.ended[r.key].logprobs_T for r in run.requests]) - np.concatenate(
        expected
    )


def conforms(off_N: np.ndarray, plain_N: np.ndarray) -> bool:
    """Return whether the error is that of bfloat16.

    The mean |Δ| is at most 1.5 times that of a plain bfloat16 pass, and the mean signed Δ is within
    3 standard errors of 0.
    """
    error = off_N.std(ddof=1) / np.sqrt(len(off_N))
    return bool(
        np.abs(off_N).mean() <= RATIO * np.abs(plain_N).mean()
        and abs(off_N.mean()) <= ERRORS * error
    )


def test_it_is_as_near_to_float32_as_a_plain_pass_and_to_neither_side(run):
    off_N = off(run)
    plain_N = run.plain - (
        np.concatenate([run.ended[r.key].logprobs_T for r in run.requests]) - off_N
    )
    assert len(off_N) == TOKENS
    assert conforms(off_N, plain_N), (
        f"mean |Δ| {np.abs(off_N).mean():.2e} against {np.abs(plain_N).mean():.2e} of a plain pass;"
        f" mean Δ {off_N.mean():.2e} ± {off_N.std() / np.sqrt(TOKENS):.1e}"
    )


@pytest.mark.parametrize(
    ("fault", "changed"),
    [
        ("a position off by one", {"drop": 0}),
        ("one KV token dropped", {"drop": 5}),
        ("a temperature that is not applied", {"temperature": 1.0}),
        ("the previous policy's weights", {"seed": OTHER}),
    ],
)
def test_faults_show(run, fault, changed):
    off_N = off(run)
    plain_N = run.plain - (
        np.concatenate([run.ended[r.key].logprobs_T for r in run.requests]) - off_N
    )
    assert not conforms(off(run, **changed), plain_N), fault


def test_a_lean_to_one_side_shows(run):
    """Half the mean |Δ|, added to each: still near enough, but biased."""
    off_N = off(run)
    plain_N = run.plain - (
        np.concatenate([run.ended[r.key].logprobs_T for r in run.requests]) - off_N
    )
    assert not conforms(off_N + 0.25 * np.abs(off_N).mean(), plain_N)
