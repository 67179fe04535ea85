"""The held-out split of examples, and the batches of all steps: functions of a seed. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from banyan.digest import blake
from services.learner.packing.unroll import TreePart
from services.learner.sft.examples import Example


def split(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Return the examples to train on, and those held out.

    Examples of one key stay together. About share × examples are held out: above 0 at least one
    key, and never all of them.
    """
    sizes = Counter(example.key for example in examples)
    chosen: set[bytes] = set()
    left = round(share * len(examples))
    if share and len(sizes) > 1:
        for key in sorted(sizes, key=lambda key: blake(b"banyan.sft.v1", key)):
            if sizes[key] <= left and len(chosen) < len(sizes) - 1:
                chosen.add(key)
                left -= sizes[key]
        chosen = chosen or {min(sizes, key=lambda key: (sizes[key], key))}
    train = [example for example in examples if example.key not in chosen]
    return train, [example for example in examples if example.key in chosen]


def batches(
    parts: Sequence[TreePart], batch_tokens: int, seed: int, *, epochs: int, steps: int | None
) -> list[list[TreePart]]:
    """Return the parts of each step.

    Each epoch takes all parts in another order. A part above `batch_tokens` is a batch of its own.

    steps: so many steps, instead of whole epochs
    """
    if steps is None:
        return [
            batch for epoch in range(epochs) for batch in _epoch(parts, batch_tokens, seed, epoch)
        ]
    return list(islice(_endless(parts, batch_tokens, seed), steps))


def _endless(parts: Sequence[TreePart], batch_tokens: int, seed: int) -> Iterator[list[TreePart]]:
    epoch = 0
    while parts:
        yield from _epoch(parts, batch_tokens, seed, epoch)
        epoch += 1


def _epoch(
    parts: Sequence[TreePart], batch_tokens: int, seed: int, epoch: int
) -> Iterator[list[TreePart]]:
    """Yield the batches of an epoch, filled in order."""
    batch: list[TreePart] = []
    size = 0
    for index in np.random.default_rng((seed, epoch)).permutation(len(parts)):
        part = parts[index]
        if batch and size + len(part) > batch_tokens:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += len(part)
    if batch:
        yield batch
