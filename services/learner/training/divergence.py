"""The count of consecutive batches that taught nothing, as no loss or gradient was finite. Pure.

Many of them mean that no later step will be finite either. A batch with some optimizer steps taken
and others skipped has taught something, and does not count.
"""

from collections.abc import Iterable, Mapping

from banyan.errors import InvalidInput


def trailing(measured: Iterable[tuple[int, Mapping[str, float]]], step: int) -> int:
    """Return the number of consecutive steps up to `step` that taught nothing.

    measured: steps with their metrics, in any order; repeated steps without metrics are ignored
    """
    failures = {at: _taught_nothing(metrics) for at, metrics in measured if "not_finite" in metrics}
    count = 0
    while failures.get(step - count):
        count += 1
    return count


def after(count: int, metrics: Mapping[str, float]) -> int:
    """Return the count after one more step."""
    return count + 1 if _taught_nothing(metrics) else 0


def _taught_nothing(metrics: Mapping[str, float]) -> bool:
    return bool(metrics["not_finite"]) and not metrics["applied"]


def refuse(count: int, most: int, step: int) -> None:
    """Raise InvalidInput, which ends the run, once `most` consecutive steps taught nothing."""
    if count >= most:
        raise InvalidInput(
            f"the last {count} steps up to step {step} had a loss or a gradient that is not finite,"
            " so nothing is learned any more: lower optimise.learning_rate or clip_norm, or look at"
            " the rewards (optimise.max_not_finite)"
        )
