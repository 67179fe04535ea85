"""Settings of a built-in task, checked."""

from collections.abc import Sequence

from banyan.errors import InvalidInput
from banyan.recipe import Task


def known(task: Task, names: Sequence[str]) -> None:
    """Raise InvalidInput if `task.config` has a setting of another name."""
    if other := sorted(task.config.keys() - set(names)):
        takes = " and ".join(f"`{name}`" for name in names)
        raise InvalidInput(f"task.config has {other[0]!r}; {task.name} takes {takes} alone")


def whole(task: Task, name: str, default: int, low: int, high: int) -> int:
    """Return a setting that is a whole number in low..high. Raise InvalidInput for another."""
    value = task.config.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise InvalidInput(
            f"task.config.{name} must be a whole number in {low}..{high}, got {value!r}"
        )
    return value
