"""Speed on a CUDA device: the torch engine in bfloat16, and training through FlexAttention.

Training is on packed trees. The bench was written without a CUDA device at hand and has not been
run on one: until then it says nothing of speed. It refuses to start without a device.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from bench.harness.table import Result, median
from bench.rivals.flattened import Rivals, Shape, kept, model

MODEL = "SmolLM2-135M-Instruct"
PROMPTS = 8
LENGTH = 512
BRANCHES = 16
NEW = 64
TREES = (Shape(512, 16, 64), Shape(1024, 32, 128), Shape(128, 2, 64, depth=5))
RUNS = 5


def run() -> Result:
    """Measure tokens a second of the engine; seconds and speed-up of packed trees."""
    if not torch.cuda.is_available():
        sys.exit(
            "bench gpu: PyTorch sees no CUDA device here; run it on a machine that has one, with "
            "PyTorch for CUDA"
        )
    result, device = Result("gpu"), torch.device("cuda")
    result.add(f"engine: {PROMPTS} x {LENGTH} x {BRANCHES} x {NEW}", _engine(device), "tok/s")
    trained = model().to(device)  # type: ignore[arg-type]
    for shape in TREES:
        _training(result, Rivals(trained, shape))
    result.notes.append(
        f"{torch.cuda.get_device_name()}, bfloat16, medians of {RUNS} runs after one that compiles"
    )
    return result


def _engine(device: torch.device) -> float:
    from banyan.policy import PolicyVersion
    from banyan.segment import Sampling
    from services.chassis import models
    from services.rollout.engines.port import Request
    from services.rollout.engines.torch_engine import loading
    from services.rollout.engines.torch_engine.engine import TorchEngine
    from services.rollout.engines.torch_engine.forward import Forward
    from services.rollout.engines.torch_engine.kv.kv_budget import Limits

    folder = models.resolve(MODEL, tokenizer=True)
    forward = Forward(loading.load_model(folder, torch.bfloat16, device))
    tokenizer = loading.ChatTokenizer(folder, forward.model)
    tokenizer.eos = frozenset()

    def once() -> None:
        engine = TorchEngine(forward, tokenizer, Limits(), PolicyVersion(0, 0, b""))
        ids_P_T = (
            np.random.default_rng(0).integers(1000, 40_000, (PROMPTS, LENGTH)).astype(np.int32)
        )
        for p, prefix in enumerate(ids_P_T):
            for b in range(BRANCHES):
                engine.submit(Request((p, b), prefix, 1000 * p + b, Sampling(max_new_tokens=NEW)))
        while engine.busy:
            engine.step()

    return PROMPTS * BRANCHES * NEW / _seconds(once)


def _training(result: Result, rivals: Rivals) -> None:
    shape = rivals.shape
    ours, theirs = _seconds(rivals.packed), _seconds(lambda: rivals.flattened(4))
    result.add(f"{shape}: packed through FlexAttention, forward and backward", ours, "s")
    result.add(f"{shape}: flattened / packed", theirs / ours, "x")
    result.add(f"{shape}: bound by the cost model", rivals.bound, "x")
    result.add(
        f"{shape}: kept for the backward pass", kept(rivals.model, rivals.packed) / 2**30, "GiB"
    )
    rivals.forget()


def _seconds(do: Callable[[], None]) -> float:
    """Return the median, with the device's work in it; the first run compiles."""
    do()
    seconds = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        do()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return median(seconds)
