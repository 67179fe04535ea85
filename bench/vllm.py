"""The vllm engine against vLLM called directly, on trees, and when it loads a policy.

Both send the same requests (prompt, seed, length, log-probs) to the same running vLLM, with the
same limit on concurrent ones, in turn, each time under a new cache salt. Trees: 16 leaves, a fork
of two at each of four depths; against 16 samples of the same length, each by itself; both on our
engine. Only in .venv-vllm.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from banyan.segment import IntTokens, Sampling
from bench.harness.table import Result, median

MODEL = os.environ.get("BENCH_MODEL", "SmolLM2-135M-Instruct")
RUNS = int(os.environ.get("BENCH_RUNS", "5"))
PROMPTS = 8
PROMPT = 64
BRANCHES = 8
NEW = 32
AT_ONCE = 32
TREES = 2
TRUNK = 96
SEGMENT = 16
DEPTH = 4
FORKS = (2, 2, 2, 2)
PAIRS = 3  # times RUNS: the ratio of one pair varies from 0.6 to 1.3
BAR = 97.0  # percent


def run() -> Result:
    """Measure the share of direct calls' tokens/s, then trees."""
    from services.rollout.engines.vllm_engine.engine import VllmEngine

    engine: VllmEngine = _engine()
    result = Result("vllm")
    try:
        _flat(engine, result)
        _trees(engine, result)
        _updates(engine, result)
    finally:
        engine.close()
    result.notes.append(
        f"medians of {RUNS} runs in turn, {AT_ONCE} at once, load {os.getloadavg()[0]:.1f} at the "
        "end"
    )
    return result


def _engine() -> Any:
    from banyan.recipe import Resources
    from services.chassis import models
    from services.rollout.engines.factory import UNLOADED
    from services.rollout.engines.vllm_engine import start

    resources = Resources(engine="vllm", kv_tokens=32_768, max_branches=AT_ONCE)
    engine = start.build(models.resolve(MODEL, tokenizer=True), resources, None, UNLOADED)
    engine.tokenizer.eos = frozenset()  # all make the same number of tokens
    return engine


# -- the same requests, ours and directly --


def _flat(engine: Any, result: Result) -> None:
    ours, theirs = [], []
    for turn in range(PAIRS * RUNS + 1):
        requests, ways = _requests(turn), (_through, _directly)
        seconds = {
            way: _seconds(way, engine, requests) for way in (ways if turn % 2 else ways[::-1])
        }
        if turn:  # the first warms up
            ours.append(seconds[_through])
            theirs.append(seconds[_directly])
    tokens = PROMPTS * BRANCHES * NEW
    share = 100 * median([b / a for a, b in zip(ours, theirs, strict=True)])
    result.add("engine vllm", tokens / median(ours), "tok/s")
    result.add("vLLM called directly", tokens / median(theirs), "tok/s")
    result.add("share of it (of medians)", 100 * median(theirs) / median(ours), "%")
    result.add(
        "share of it (of pairs)",
        share,
        "%",
        f"bar: at least {BAR:g}" + (" MISSED" if share < BAR else ""),
    )


def _requests(turn: int) -> list[Any]:
    from services.rollout.engines.port import Request

    draws = np.random.default_rng(turn)
    prompts = draws.integers(1000, 40_000, (PROMPTS, PROMPT)).astype(np.int32)
    return [
        Request((p, b), prompts[p], int(draws.integers(2**62)), Sampling(max_new_tokens=NEW))
        for p in range(PROMPTS)
        for b in range(BRANCHES)
    ]


def _through(engine: Any, requests: Sequence[Any]) -> list[Any]:
    engine.forget()
    for request in requests:
        engine.submit(request)
    ended = []
    while engine.busy:
        ended += engine.step()
    assert len(ended) == len(requests)
    return ended


def _directly(engine: Any, requests: Sequence[Any]) -> None:
    """Give vLLM all requests at once; it runs as many as it may, as for us."""
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    from services.rollout.engines.vllm_engine import params as vllm_params

    llm, salt = engine._core._llm, f"direct-{time.monotonic()}"

    async def one(at: int, request: Any) -> int:
        params = vllm_params.sampling_params(request, frozenset())
        sampling = SamplingParams(
            **params, output_kind=RequestOutputKind.FINAL_ONLY, flat_logprobs=True, ignore_eos=True
        )
        last: Any = None
        async for output in llm.generate(
            tokens_input(request.prefix_P.tolist(), cache_salt=salt), sampling, f"{salt}-{at}"
        ):
            last = output
        return len(last.outputs[0].token_ids)

    async def together() -> list[int]:
        return await asyncio.gather(*(one(at, request) for at, request in enumerate(requests)))

    assert engine._loop.run_until_complete(together()) == [NEW] * len(requests)


# -- trees --


def _trees(engine: Any, result: Result) -> None:
    trees, alone, shares = [], [], []
    leaves = TREES * int(np.prod(FORKS))
    for turn in range(RUNS):
        trunks = list(
            np.random.default_rng(100 + turn)
            .integers(1000, 40_000, (TREES, TRUNK))
            .astype(np.int32)
        )
        before = engine.stats()
        trees.append(_seconds(_tree, engine, trunks))
        after = engine.stats()
        cached = after.cached_tokens - before.cached_tokens
        fresh = after.prefilled_tokens - before.prefilled_tokens
        shares.append(100 * cached / (cached + fresh))
        alone.append(_seconds(_independent, engine, trunks))
    tokens = leaves * DEPTH * SEGMENT
    result.add("trees: cached share of prefix tokens", median(shares), "%")
    result.add("trees: tokens on paths to leaves", tokens / median(trees), "tok/s")
    result.add("independent samples: the same", tokens / median(alone), "tok/s")
    result.add(
        "trees / independent samples",
        median([b / a for a, b in zip(trees, alone, strict=True)]),
        "x",
    )


def _tree(engine: Any, trunks: Sequence[IntTokens]) -> None:
    """Grow a tree whose segments fork at once when they end."""
    engine.forget()
    for t, trunk in enumerate(trunks):
        for b in range(FORKS[0]):
            _ask(engine, (t, b), trunk, SEGMENT)
    paths = {(t,): trunk for t, trunk in enumerate(trunks)}
    while engine.busy:
        for sampled in engine.step():
            paths[sampled.key] = np.concatenate((paths[sampled.key[:-1]], sampled.tokens_T))
            if len(sampled.key) <= DEPTH:
                for b in range(FORKS[len(sampled.key) - 1]):
                    _ask(engine, (*sampled.key, b), paths[sampled.key], SEGMENT)


def _independent(engine: Any, trunks: Sequence[IntTokens]) -> None:
    engine.forget()
    for t, trunk in enumerate(trunks):
        for b in range(int(np.prod(FORKS))):
            _ask(engine, (t, b), trunk, DEPTH * SEGMENT)
    while engine.busy:
        engine.step()


# -- updates --


def _updates(engine: Any, result: Result) -> None:
    """Measure the cost of a new policy: made, loaded, read back, its canary scored."""
    import torch

    from services.chassis import models
    from services.chassis.weights import file
    from services.learner.model import canary, load, master_weights

    trained = load.load(models.resolve(MODEL))
    tensors = master_weights.Masters(trained, torch.bfloat16).computed()
    seconds = dict[str, list[float]]()
    core, ask = engine._core, engine._loop.run_until_complete

    @contextlib.contextmanager
    def timed(name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        seconds.setdefault(name, []).append(time.perf_counter() - begun)

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for turn in range(RUNS):
            tensors["model.norm.weight"][-1] *= 1.01
            with timed("the learner's canary"):
                scores = canary.of(trained, "bfloat16")
            path = file.write(Path(folder), f"policy-1-{turn % 2}", tensors, 1, turn).manifest_path
            with timed("taken by vLLM"):
                ask(core.update(path))
            with timed("read back"):
                read_back = ask(core.read_back(path))
            assert read_back == ([], []), read_back
            with timed("canary scored"):
                ask(core.score(scores["tokens"], 1, 1.0, str(turn)))
    for name, values in seconds.items():
        result.add(f"update: {name}", median(values), "s")


def _ask(engine: Any, key: tuple[int, ...], prefix_P: IntTokens, count: int) -> None:
    from services.rollout.engines.port import Request

    draw = int(np.random.default_rng([1 + part for part in key]).integers(2**62))
    engine.submit(Request(key, prefix_P, draw, Sampling(max_new_tokens=count), keep=True))


def _seconds(
    do: Callable[[Any, Sequence[Any]], object], engine: Any, requests: Sequence[Any]
) -> float:
    begun = time.perf_counter()
    do(engine, requests)
    return time.perf_counter() - begun
