"""The torch engine against transformers' `generate` on the repeated batch: the saving by sharing.

Both sample at temperature 1 without truncation from the same bfloat16 weights with the same
threads; no end token stops a branch, so that both make the same number of tokens. Runs alternate,
and medians are compared.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.table import Result, median

MODEL = os.environ.get("BENCH_MODEL", "SmolLM2-135M-Instruct")
RUNS = int(os.environ.get("BENCH_RUNS", "5"))
CURVE_RUNS = max(1, RUNS // 3)
CASES = (  # prompts, prompt tokens, branches, new tokens, least times the tokens/s of generate
    (8, 40, 8, 8, 1.5),
    (8, 40, 8, 64, 1.2),
    (1, 1024, 16, 32, 4.0),
)
CURVE_PROMPTS, CURVE_BRANCHES, CURVE_NEW = (64, 256, 1024, 2048), (2, 8, 32), 16


def run() -> Result:
    """Measure the cases with a bar, then the curve."""
    result = Result("branches")
    rivals = Rivals()
    rivals.ratio(1, 8, 2, 2, 1)  # warm
    for prompts, length, branches, new, bar in CASES:
        what = f"{prompts} x {length} tokens x {branches} branches x {new} new"
        ours, theirs, processor = rivals.ratio(prompts, length, branches, new, RUNS)
        tokens = prompts * branches * new
        result.add(f"{what}: engine", tokens / ours, "tok/s")
        result.add(f"{what}: generate", tokens / theirs, "tok/s")
        result.add(
            f"{what}: ratio",
            theirs / ours,
            "x",
            f"bar: at least {bar}" + (" MISSED" if theirs / ours < bar else ""),
        )
        result.add(f"{what}: ratio of processor time", processor, "x")
    for length in CURVE_PROMPTS if CURVE_RUNS else ():
        for branches in CURVE_BRANCHES:
            ours, theirs, _ = rivals.ratio(1, length, branches, CURVE_NEW, CURVE_RUNS)
            result.add(f"curve: 1 x {length} x {branches} x {CURVE_NEW}: ratio", theirs / ours, "x")
    runs = f"median of {RUNS} alternating runs ({CURVE_RUNS} in the curve)"
    result.notes.append(
        f"{rivals.threads} threads, bfloat16, {runs}, load {os.getloadavg()[0]:.1f} at the end"
    )
    return result


class Rivals:
    """One model folder, loaded by both."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from services.chassis import models
        from services.rollout.engines.torch_engine import loading
        from services.rollout.engines.torch_engine.forward import Forward

        self.threads = torch.get_num_threads()
        folder, cpu = _folder(models), torch.device("cpu")
        self._forward = Forward(loading.load_model(folder, torch.bfloat16, cpu))
        self._plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self._plain.generation_config.eos_token_id = None
        self._tokenizer = loading.ChatTokenizer(folder, self._forward.model)
        self._tokenizer.eos = frozenset()
        self._seed = 0

    def ratio(
        self, prompts: int, length: int, branches: int, new: int, times: int
    ) -> tuple[float, float, float]:
        """Return median seconds of the engine and of `generate`, and the ratio of their processor
        time.

        Other processes on the machine disturb the processor time less.
        """
        ours, theirs = [], []
        for _ in range(times):
            self._seed += 1
            ids = (
                np.random.default_rng(self._seed)
                .integers(1000, 40_000, (prompts, length))
                .astype(np.int32)
            )
            ours.append(_seconds(partial(self.engine, ids, branches, new)))
            theirs.append(_seconds(partial(self.generate, ids, branches, new)))
        wall = [median([seconds for seconds, _ in runs]) for runs in (ours, theirs)]
        processor = [median([seconds for _, seconds in runs]) for runs in (ours, theirs)]
        return wall[0], wall[1], processor[1] / processor[0]

    def engine(self, ids_P_T: np.ndarray[Any, np.dtype[np.int32]], branches: int, new: int) -> None:
        """Run our engine, with nothing cached."""
        from banyan.policy import PolicyVersion
        from banyan.segment import Sampling
        from services.rollout.engines.port import Request
        from services.rollout.engines.torch_engine.engine import TorchEngine
        from services.rollout.engines.torch_engine.kv.kv_budget import Limits

        engine = TorchEngine(self._forward, self._tokenizer, Limits(), PolicyVersion(0, 0, b""))
        for p, prefix in enumerate(ids_P_T):
            for b in range(branches):
                engine.submit(Request((p, b), prefix, 1000 * p + b, Sampling(max_new_tokens=new)))
        ended = 0
        while engine.busy:
            ended += sum(len(sampled.tokens_T) for sampled in engine.step())
        assert ended == len(ids_P_T) * branches * new

    def generate(
        self, ids_P_T: np.ndarray[Any, np.dtype[np.int32]], branches: int, new: int
    ) -> None:
        """Run transformers, with each branch on its own prompt."""
        import torch

        ids = torch.from_numpy(np.repeat(ids_P_T.astype(np.int64), branches, 0))
        with torch.inference_mode():
            out = self._plain.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=new,
                pad_token_id=0,
            )
        assert out.shape == (len(ids), ids.shape[1] + new)


def _folder(models: Any) -> Path:
    path: Path = models.resolve(MODEL, tokenizer=True)
    return path


def _seconds(do: Callable[[], None]) -> tuple[float, float]:
    """Return seconds by the clock, and of the processor."""
    begun, used = time.perf_counter(), time.process_time()
    do()
    return time.perf_counter() - begun, time.process_time() - used
