"""Numbers of a run's rows, in words, and what is odd about them. Pure."""

from banyan.digest import row_digest
from banyan.recipe import Task
from services.gateway.tasks.dataset import Examples


def split(train: int, held_out: int) -> str:
    """Return how many rows are trained on, and how many are held out."""
    return f"{_rows(train)} to train on, {held_out:,} held out"


def without_held_out(task: Task, held_out: int) -> str:
    """Return a warning if rows were to be held out and none is; else an empty text."""
    if held_out or not task.holdout:
        return ""
    return (
        f"task.holdout {task.holdout:g} holds out no row, as all rows are one problem: accuracy"
        " will not be measured"
    )


def doubtful(examples: Examples) -> list[str]:
    """Return warnings about the rows of a run."""
    rows = [*examples.train, *examples.held_out]
    again = len(rows) - len({row_digest(row) for row in rows})
    warnings = [without_held_out(examples.task, len(examples.held_out))]
    if again:
        of = f"{_rows(again)} of {len(rows):,} repeat{'s' if again == 1 else ''} others"
        warnings.append(f"{of}, and each of them counts once more")
    return [warning for warning in warnings if warning]


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
