"""Speed on a CUDA device: the torch engine in bfloat16, and training through FlexAttention.

The engine samples branches of shared prompts, beside transformers' own `generate` on the same
paths. Training is on packed trees, beside their flattened paths through transformers' own
attention, as many at once as are fastest. Weights are random, in the shapes of SmolLM2-135M, whose
kernels the host launches slower than a device runs them, and of SmolLM2-1.7B. It refuses to start
without a device.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from banyan.environments.renderers import RendererSpec
from banyan.policy import PolicyVersion
from banyan.segment import IntTokens, Sampling
from bench.harness.table import Result, median
from bench.rivals.flattened import SIZES, Rivals, Shape, model
from services.chassis.renderers.port import Renderer
from services.learner.training.trainer import settle
from services.rollout.engines.port import Request
from services.rollout.engines.torch_engine import attention_check, loading
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.kv.kv_budget import Limits, share_from

PROMPTS = 8
LENGTH = 512
NEW = 64
BRANCHES = 16  # of a prompt
AT_ONCE = (64, 128)  # branches that run at once: the recipe's default, and all
KV_TOKENS = 1 << 17
SHAPE = Shape(512, 16, 64)
# Models, and the trees of a row.
ROWS = (
    ("SmolLM2-135M", SHAPE, 1),
    ("SmolLM2-135M", SHAPE, 8),
    ("SmolLM2-135M", Shape(128, 2, 64, depth=5), 4),
    ("SmolLM2-1.7B", SHAPE, 1),
    ("SmolLM2-1.7B", SHAPE, 8),
)
WIDTHS = (16, 32, 64)  # flattened paths at once
RUNS = 5


def run() -> Result:
    """Measure tokens a second of the engine; seconds and speed-up of packed trees."""
    if not torch.cuda.is_available():
        sys.exit(
            "bench gpu: PyTorch sees no CUDA device here; run it on a machine that has one, with "
            "PyTorch for CUDA"
        )
    result, device = Result("gpu"), torch.device("cuda")
    for name in SIZES:
        _sampling(result, name, device)
    settle(None, device)
    for name in SIZES:
        trained = model(name=name, device=str(device))
        for _, shape, trees in (row for row in ROWS if row[0] == name):
            _training(result, name, Rivals(trained, shape, trees))
    result.notes.append(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, bfloat16, random weights in "
        f"the shapes of the named models, medians of {RUNS} runs after one that compiles"
    )
    return result


# -- sampling --


class _NoTokenizer:
    """A tokenizer without end tokens or texts: every branch runs to its limit."""

    eos: frozenset[int] = frozenset()

    def renderer(self, spec: RendererSpec) -> Renderer:
        raise NotImplementedError

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> IntTokens:
        raise NotImplementedError

    def encode(self, text: str) -> IntTokens:
        raise NotImplementedError

    def decode(self, tokens: IntTokens) -> str:
        raise NotImplementedError


def prompts() -> IntTokens:
    """Return [prompts, tokens]."""
    drawn = np.random.default_rng(0).integers(1000, 40_000, (PROMPTS, LENGTH))
    return drawn.astype(np.int32)


def _sampling(result: Result, name: str, device: torch.device) -> None:
    sampled = model(name=name, device=str(device)).requires_grad_(False)
    forward = attention_check.checked(loading.with_attention(sampled))
    paths = PROMPTS * BRANCHES
    for at_once in AT_ONCE:
        limits = Limits(
            kv_tokens=KV_TOKENS, max_branches=at_once, share_from=share_from(device, KV_TOKENS)
        )
        engine = TorchEngine(forward, _NoTokenizer(), limits, PolicyVersion(0, 0, b""))
        seconds = _seconds(partial(sample, engine))
        what = f"{name}: engine, {PROMPTS} x {LENGTH} x {BRANCHES} x {NEW}, {at_once} at once"
        result.add(what, paths * NEW / seconds, "tok/s")
    sampled.set_attn_implementation("sdpa")
    sampled.generation_config.eos_token_id = None
    seconds = _seconds(partial(_generate, sampled))
    what = f"{name}: transformers' generate, the same {paths} paths at once"
    result.add(what, paths * NEW / seconds, "tok/s")


def sample(engine: TorchEngine) -> None:
    """Sample branches of all prompts, of which the engine has nothing cached."""
    engine.forget()
    for p, prefix in enumerate(prompts()):
        for b in range(BRANCHES):
            engine.submit(Request((p, b), prefix, 1000 * p + b, Sampling(max_new_tokens=NEW)))
    while engine.busy:
        engine.step()


def _generate(sampled: Any) -> None:
    ids = torch.from_numpy(prompts().astype(np.int64)).to(sampled.device)
    sampled.generate(
        ids.repeat_interleave(BRANCHES, 0),
        attention_mask=None,
        do_sample=True,
        top_k=0,
        max_new_tokens=NEW,
        pad_token_id=0,
    )


# -- training --


def _training(result: Result, name: str, rivals: Rivals) -> None:
    of = f"{name}: {rivals.trees} x ({rivals.shape})"
    begun = time.perf_counter()
    rivals.packed()
    torch.cuda.synchronize()
    result.add(f"{of}: first packed pass", time.perf_counter() - begun, "s")
    width = _fastest(rivals)
    ours, theirs = _seconds(rivals.packed), _seconds(partial(rivals.flattened, width))
    result.add(f"{of}: packed through FlexAttention, forward and backward", ours, "s")
    result.add(f"{of}: flattened, {width} paths at once", theirs, "s")
    result.add(f"{of}: flattened / packed", theirs / ours, "x")
    result.add(f"{of}: bound by the cost model", rivals.bound, "x")
    result.add(f"{of}: most memory, packed", _memory(rivals, rivals.packed), "GiB")
    held = _memory(rivals, partial(rivals.flattened, width))
    result.add(f"{of}: most memory, flattened, {width} paths at once", held, "GiB")


def _fastest(rivals: Rivals) -> int:
    """Return the number of flattened paths at once that is fastest, of those that fit."""
    tried: dict[int, float] = {}
    for width in (width for width in WIDTHS if width <= len(rivals.flat)):
        try:
            tried[width] = _seconds(partial(rivals.flattened, width), 1)
        except torch.OutOfMemoryError:
            break
    rivals.forget()
    torch.cuda.empty_cache()
    return min(tried, key=lambda width: tried[width])


def _memory(rivals: Rivals, do: Callable[[], None]) -> float:
    """Return the most memory of a pass, without what is held before it."""
    rivals.forget()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    do()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated()
    rivals.forget()
    return (most - before) / 2**30


def _seconds(do: Callable[[], None], runs: int = RUNS) -> float:
    """Return the median, with the device's work in it; the first run compiles."""
    do()
    seconds = []
    for _ in range(runs):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        do()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return median(seconds)
