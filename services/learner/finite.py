"""Steps in a row whose loss or gradient is not finite: one is skipped, many mean that no step will come any more. Pure."""

from collections.abc import Iterable, Mapping

from banyan.errors import InvalidInput


def trailing(measured: Iterable[tuple[int, Mapping[str, float]]], step: int) -> int:
    """How many steps up to `step`, from the last one back, were not finite. measured: steps with what they measured, in any
    order; a step may be told again without numbers."""
    known = {at: said["not_finite"] for at, said in measured if "not_finite" in said}
    count = 0
    while known.get(step - count):
        count += 1
    return count


def after(count: int, metrics: Mapping[str, float]) -> int:
    """The count after one more step."""
    return count + 1 if metrics["not_finite"] else 0


def refuse(count: int, most: int, step: int) -> None:
    """Raises InvalidInput, which ends the run, once `most` steps in a row were not finite."""
    if count >= most:
        raise InvalidInput(
            f"the last {count} steps up to step {step} had a loss or a gradient that is not finite, so nothing is learned"
            " any more: lower optimise.learning_rate or clip_norm, or look at the rewards (optimise.max_not_finite)"
        )
