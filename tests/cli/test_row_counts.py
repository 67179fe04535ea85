"""What is said of a run's rows."""

from banyan.cli.train import row_counts
from banyan.recipe import Task
from services.gateway.tasks.dataset import Examples

ROWS = [{"prompt": str(i)} for i in range(4)]


def examples(train: list[dict[str, str]], held_out: list[dict[str, str]]) -> Examples:
    task = Task(name="file", path="rows.jsonl", reward="rewards:exact", holdout=0.3)
    return Examples(task, train, held_out, b"")


def test_numbers_have_their_words() -> None:
    assert row_counts.split(1, 0) == "1 row to train on, 0 held out"
    assert row_counts.split(2000, 1) == "2,000 rows to train on, 1 held out"


def test_good_rows_are_not_doubted() -> None:
    assert row_counts.doubtful(examples(ROWS[:3], ROWS[3:])) == []


def test_rows_that_repeat_others_are_counted() -> None:
    (said,) = row_counts.doubtful(examples([*ROWS[:3], *ROWS[:2]], ROWS[3:]))
    assert said.startswith("2 rows of 6 repeat others")
    (said,) = row_counts.doubtful(examples([*ROWS[:3], ROWS[0]], ROWS[3:]))
    assert said.startswith("1 row of 5 repeats others")


def test_a_share_that_holds_out_nothing_is_said() -> None:
    assert "task.holdout 0.3 holds out no row" in row_counts.doubtful(examples(ROWS[:1], []))[0]
    task = Task(name="arithmetic", holdout=0.0)
    assert row_counts.without_held_out(task, 0) == "", "asked for"
