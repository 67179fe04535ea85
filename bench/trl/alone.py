"""Our own step with and without sharing of prompts.

`python -m bench.trl.alone shared|alone STEPS OUT.json` does the same work in one process, without
services. Alone, each sampled path prefills its whole prompt and nothing is kept; each trained path
is packed with a whole prompt of its own, all of a batch still in one sequence if its capacity
allows.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from banyan.runtime import torch_environment

WAYS = ("shared", "alone")


def measured(steps: int) -> dict[str, Any]:
    """Measure both ways, each in a new process, one after the other."""
    return {way: _started(way, steps) for way in WAYS}


def _started(way: str, steps: int) -> dict[str, Any]:
    environ = dict(os.environ)
    torch_environment.settle(environ)
    torch_environment.bind(environ, len(torch_environment.CORES))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", "bench.trl.alone", way, str(steps), str(out)]
        subprocess.run(
            command, cwd=Path(__file__).parents[2], env=environ, check=True, timeout=3600.0
        )
        result: dict[str, Any] = json.loads(out.read_text())
    return result


def run(way: str, steps: int) -> dict[str, Any]:
    """Return seconds of each step and its parts, and counts of prefilled and packed tokens.

    Raises RuntimeError if prompts were shared.
    """
    from bench.rivals.oneprocess import OneProcess
    from bench.trl import ours

    recipe = ours.recipe(ours.VARIED)
    with alone() if way == "alone" else contextlib.nullcontext():
        process = OneProcess(recipe)
        sampled = []
        prompts = []
        packed = []
        used = []
        for number in range(steps):
            before, begun = process.engine.stats(), time.process_time()
            lesson, _ = process.step(number)
            used.append(time.process_time() - begun)
            after = process.engine.stats()
            sampled.append(after.sampled_tokens - before.sampled_tokens)
            prompts.append(after.prefilled_tokens - before.prefilled_tokens)
            packed.append(sum(len(row.token_U) for row in lesson.sequences))
            if way == "alone" and after.cached_tokens:
                raise RuntimeError(
                    f"{after.cached_tokens} tokens of prompts were shared though each path should "
                    "have its own"
                )
            paths = lesson.metrics["path_tokens"]
            if way == "alone" and packed[-1] != paths:
                raise RuntimeError(
                    f"{packed[-1]} tokens were trained for paths of {paths:.0f}: some were shared"
                )
    spent = process.seconds
    return {
        "seconds": spent.steps,
        "processor_s": used,
        "of_it": {
            name: getattr(spent, name)
            for name in ("sample", "score", "prepare", "train", "refresh")
        },
        "tokens": sampled,
        "prefilled": prompts,
        "packed": packed,
    }


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let no path share tokens with another within the context.

    This holds for the engine's waves and store, and for the learner's sequences.
    """
    from bench.rivals import oneprocess
    from services.learner.data.prepare import build_lesson
    from services.learner.packing import packing
    from services.rollout.engines.port import Request
    from services.rollout.engines.torch_engine import engine
    from services.rollout.engines.torch_engine.kv.kv_budget import KvBudget
    from services.rollout.engines.torch_engine.kv.prefix_cache import Match, PrefixCache
    from services.rollout.engines.torch_engine.scheduling.admission import Group

    def wave(
        requests: Sequence[Request], store: PrefixCache, shared: Collection[bytes]
    ) -> tuple[list[Group], list[Request]]:
        return [Group(request.prefix_P, [request], Match((), 0)) for request in requests], []

    def lesson(
        scored: Any, estimator: Any, stale: Any, policy: bytes, budget: int, **more: Any
    ) -> Any:
        def pack(pieces: Iterable[Any], _: int) -> list[packing.PackedSequence]:
            return packing.pack(pieces, budget)

        # With a budget of 0 each path is a part of its own.
        return build_lesson(scored, estimator, stale, policy, 0, pack=pack, **more)

    with (
        mock.patch.object(engine, "next_wave", wave),
        mock.patch.object(KvBudget, "keep", lambda *_: None),
        mock.patch.object(KvBudget, "worth_sharing", lambda *_: False),
        mock.patch.object(packing, "_shared_trunk", lambda parts: 0),
        mock.patch.object(oneprocess, "build_lesson", lesson),
    ):
        yield


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(run(sys.argv[1], int(sys.argv[2]))))
