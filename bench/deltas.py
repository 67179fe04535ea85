"""Size of a training step's changes in the published weights, and its transfer.

Steps of the arithmetic recipe, sampled, scored and trained in one process, at the rate of the tree
recipes and at a smaller one; versions are as the learner publishes them. Sizes are of all changes
of a version, in several encodings; the first one is what is sent
(services/chassis/weights/delta.py).
"""

import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from banyan.recipe_loader.load import load
from bench.harness.compared import RECIPE
from bench.harness.table import Result, median
from bench.rivals.oneprocess import OneProcess
from services.chassis.weights import file
from services.chassis.weights.delta import Words
from services.chassis.weights.file import WeightManifest
from services.chassis.weights.stream import Blocks, Encoding, Records, words_of

STEPS = int(os.environ.get("BENCH_STEPS", "8"))
RATES = ("2e-5", "1e-6")


@dataclass
class Step:
    """Version against the one before."""

    words: int
    changed: int
    sent: int
    encode_s: float
    apply_s: float
    others: dict[str, int]


def run() -> Result:
    """Measure both learning rates."""
    result = Result("deltas")
    for rate in RATES:
        steps = list(_steps(rate))
        later = steps[1:]  # Adam's first step moves each weight by the whole learning rate
        for name, part in (("the first step", steps[:1]), ("later steps", later)):
            mid = f"learning rate {rate}, {name}"
            result.add(
                f"{mid}: words that changed", 100 * median([s.changed / s.words for s in part]), "%"
            )
            result.add(
                f"{mid}: sent, of the whole",
                100 * median([s.sent / s.words / 2 for s in part]),
                "%",
            )
            result.add(
                f"{mid}: sent for a word that changed",
                median([s.sent / max(1, s.changed) for s in part]),
                "bytes",
            )
        for name in later[0].others:
            result.add(
                f"  the same as {name}",
                100 * median([s.others[name] / s.words / 2 for s in later]),
                "%",
            )
        result.add(f"learning rate {rate}: to encode", median([s.encode_s for s in steps]), "s")
        result.add(f"learning rate {rate}: to apply", median([s.apply_s for s in steps]), "s")
    result.notes.append(
        f"{STEPS} steps each, medians; a whole version has {2 * steps[0].words / 1e6:.0f} MB"
    )
    result.notes.append(f"load {os.getloadavg()[0]:.1f} at the end")
    return result


def _steps(rate: str) -> Iterator[Step]:
    alone = OneProcess(load(RECIPE, [f"optimise.learning_rate={rate}"]))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        before = _version(alone, Path(folder), 0)
        for number in range(STEPS):
            alone.step(number)
            after = _version(alone, Path(folder), number + 1)
            yield _compare(before, after)
            before[0].path.unlink()
            before = after


def _version(alone: OneProcess, folder: Path, step: int) -> tuple[WeightManifest, Words]:
    manifest = file.write(folder, f"policy-1-{step}", alone.trainer.published(), 1, step)
    return manifest, np.memmap(manifest.path, "<u2", "r")


def _compare(before: tuple[WeightManifest, Words], after: tuple[WeightManifest, Words]) -> Step:
    begun = time.perf_counter()
    encoding = Encoding(after[0], after[1], before[0].digest, before[1])
    stream = b"".join(encoding)
    encoded = time.perf_counter()
    target = np.array(before[1])
    copied = time.perf_counter()
    records, blocks = Records(), Blocks(target)
    for record in records.feed(stream)[1:]:
        blocks.take(record)
    applied = time.perf_counter() - copied
    assert np.array_equal(target, after[1]), "the changes do not make the version"
    others = _others(after[1], before[1])
    return Step(len(target), encoding.changed, len(stream), encoded - begun, applied, others)


def _others(new_W: Words, old_W: Words) -> dict[str, int]:
    """Return the bytes of other encodings of the changes."""
    at_C = np.flatnonzero(new_W != old_W)
    words = words_of(new_W[at_C].tobytes())
    bitmap = np.packbits(new_W != old_W)
    return {
        "32-bit places and words": 6 * len(at_C),
        "32-bit places and words, deflated": len(
            zlib.compress(at_C.astype("<u4").tobytes() + words.tobytes(), 1)
        ),
        "a bitmap and words": bitmap.nbytes + words.nbytes,
        "a bitmap and words, deflated": len(zlib.compress(bitmap.tobytes() + words.tobytes(), 1)),
    }
