"""Batches in a row of which nothing was learned, as no loss or gradient was finite: many mean that none will be. Pure.

A batch of which some optimizer steps were skipped and others taken has taught something, and does not count.
"""

from collections.abc import Iterable, Mapping

from banyan.errors import InvalidInput


def trailing(measured: Iterable[tuple[int, Mapping[str, float]]], step: int) -> int:
    """How many steps up to `step`, from the last one back, taught nothing. measured: steps with what they measured, in any
    order; a step may be told again without numbers."""
    known = {at: _lost(said) for at, said in measured if "not_finite" in said}
    count = 0
    while known.get(step - count):
        count += 1
    return count


def after(count: int, metrics: Mapping[str, float]) -> int:
    """The count after one more step."""
    return count + 1 if _lost(metrics) else 0


def _lost(metrics: Mapping[str, float]) -> bool:
    return bool(metrics["not_finite"]) and not metrics["applied"]


def refuse(count: int, most: int, step: int) -> None:
    """Raises InvalidInput, which ends the run, once `most` steps in a row taught nothing."""
    if count >= most:
        raise InvalidInput(
            f"the last {count} steps up to step {step} had a loss or a gradient that is not finite, so nothing is learned"
            " any more: lower optimise.learning_rate or clip_norm, or look at the rewards (optimise.max_not_finite)"
        )
