"""Training on packed trees against their flattened paths: the speed-up beside its bound.

The bound is by a cost model. Random weights of SmolLM2-135M's shape in bfloat16. Both take
log-probs only where the loss needs them; the flattened paths go through transformers' own
attention, in the fastest tried batch. Both sides are timed alike: the median of as many runs, in
turn, each after one that is not timed. The optimizer is measured apart.
"""

import os
import time
from collections.abc import Callable
from functools import partial

import torch

from banyan import registry
from banyan.credit.estimate import ScoredTree
from banyan.recipe import Optimise
from bench.harness.table import Result, median
from bench.rivals.flattened import Rivals, Shape, kept, model, tree
from services.learner.data.prepare import Lesson, build_lesson
from services.learner.training.trainer import Trainer, settle

BAR = Shape(512, 16, 64)
CURVE = {
    "flat": (Shape(192, 4, 64), Shape(384, 8, 64), Shape(512, 16, 32), Shape(512, 32, 16)),
    "deep": (Shape(64, 2, 32, depth=4), Shape(128, 2, 16, depth=6)),
}
LEAST = 4.5
SHARE = 0.85
WIDTHS = (1, 4, 8)  # paths at once: flattened ones are slower by 16
RUNS = int(os.environ.get("BENCH_RUNS", "3"))
PARTS = os.environ.get("BENCH_PARTS", "bar,flat,deep,step").split(
    ","
)  # a part at a time where runs must be short
# Tokens of the curve's flattened paths that are timed; the rest is extrapolated: all are equal.
FLAT_TOKENS = 2304


def run() -> Result:
    """Measure the bar, the curve, and the shares of estimating and packing in a step."""
    settle(None)
    result, trained = Result("packing"), model()
    if "bar" in PARTS:
        _bar(result, Rivals(trained, BAR))
    for shape in (shape for part in CURVE if part in PARTS for shape in CURVE[part]):
        _curve(result, Rivals(trained, shape))
    if "step" in PARTS:
        _step(result)
    threads = (
        f"{torch.get_num_threads()} threads, bfloat16, load {os.getloadavg()[0]:.1f} at the end"
    )
    result.notes.append(
        f"prompt x branches x new tokens; medians of {RUNS} alternating runs on both sides; "
        f"{threads}"
    )
    return result


def _bar(result: Result, rivals: Rivals) -> None:
    rivals.packed()
    tried = {width: _seconds(partial(rivals.flattened, width, max(WIDTHS))) for width in WIDTHS}
    width = min(tried, key=lambda width: tried[width])
    ours, theirs = in_turn(rivals.packed, lambda: rivals.flattened(width))
    rivals.forget()
    result.add(f"{BAR}: packed", median(ours), "s", _range(ours))
    result.add(f"{BAR}: flattened, {width} paths at once", median(theirs), "s", _range(theirs))
    _ratio(result, rivals, median(theirs) / median(ours), LEAST)
    memory = kept(rivals.model, rivals.packed), kept(rivals.model, lambda: rivals.flattened(1, 1))
    rivals.forget()
    result.add(f"{BAR}: kept for the backward pass, packed", memory[0] / 2**30, "GiB")
    result.add(
        f"{BAR}: the same, flattened, all paths at once", memory[1] * BAR.leaves / 2**30, "GiB"
    )


def _curve(result: Result, rivals: Rivals) -> None:
    shape = rivals.shape
    count = max(1, min(shape.leaves, FLAT_TOKENS // shape.length))
    ours, theirs = in_turn(rivals.packed, lambda: rivals.flattened(min(4, count), count))
    rivals.forget()
    _ratio(result, rivals, median(theirs) * shape.leaves / count / median(ours))


def _ratio(result: Result, rivals: Rivals, ratio: float, least: float = 0.0) -> None:
    shape, share = rivals.shape, ratio / rivals.bound
    bar = f"bar: at least {least}" + (" MISSED" if ratio < least else "") if least else ""
    result.add(
        f"{shape}: tokens flattened / packed", shape.leaves * shape.length / shape.unique, "x"
    )
    result.add(f"{shape}: bound by the cost model", rivals.bound, "x")
    result.add(f"{shape}: flattened / packed, forward and backward", ratio, "x", bar)
    missed = " MISSED" if share < SHARE else ""
    result.add(
        f"{shape}: share of the bound", 100 * share, "%", f"bar: at least {100 * SHARE:.0f}{missed}"
    )


def _step(result: Result) -> None:
    """Measure 512 leaves in the shape of the arithmetic recipe, where these parts weigh most."""
    shape, settings = Shape(45, 8, 8), Optimise()
    groups = []
    for number in range(512 // shape.leaves):
        grown, leaves = tree(shape, number)
        groups.append(
            (
                str(number),
                [ScoredTree(grown, leaves, {leaf: float(i % 2) for i, leaf in enumerate(leaves)})],
            )
        )
    estimator = registry.build("optimise", settings.advantage, settings.advantage_settings)

    def prepared() -> Lesson:
        return build_lesson(
            groups, estimator, lambda tree, leaf: False, b"now", settings.tokens_per_row
        )

    lesson = prepared()
    first = median([_seconds(prepared) for _ in range(RUNS)])
    trainer = Trainer(model(torch.float32), settings, torch.bfloat16)
    trainer.step(lesson.sequences[:1], 0)
    whole = median([_seconds(lambda: trainer.step(lesson.sequences, 1)) for _ in range(RUNS)])
    optimizer = median([_seconds(lambda: trainer._update(1e-6)) for _ in range(RUNS)])
    share = 100 * first / (first + whole)
    result.add("512 leaves: estimating and packing", first, "s")
    result.add("512 leaves: the optimizer step, forward and backward in it", whole, "s")
    result.add("512 leaves: AdamW and the copy of the weights alone", optimizer, "s")
    result.add(
        "512 leaves: share of estimating and packing",
        share,
        "%",
        "bar: below 2" + (" MISSED" if share >= 2 else ""),
    )


def in_turn(
    ours: Callable[[], object], theirs: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Return seconds of RUNS runs of either side, alternating."""
    turns = [(_settled(ours), _settled(theirs)) for _ in range(RUNS)]
    return [own for own, _ in turns], [his for _, his in turns]


def _range(seconds: list[float]) -> str:
    return f"{min(seconds):.2f} to {max(seconds):.2f}, {len(seconds)} runs"


def _settled(do: Callable[[], object]) -> float:
    """Return the second of two runs: the first takes over memory of the other side, page by
    page."""
    do()
    return _seconds(do)


def _seconds(do: Callable[[], object]) -> float:
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun
