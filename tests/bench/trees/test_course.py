"""A run of the experiment `trees`: when it has got there, and what its arms ask for."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench.trees import arms, choice, course
from bench.trees.arms import ARMS, Setting, Task
from bench.trees.figures import Spent
from bench.trees.process import Counts
from bench.trees.protocol import SCREENED


def _course(*accuracies: float) -> dict[str, Any]:
    points = [{"accuracy": a, "sampled": 10 * n} for n, a in enumerate(accuracies)]
    return {"points": points}


def test_it_has_got_there_at_the_first_of_two_measurements_in_a_row() -> None:
    assert course.reached(_course(0.1, 0.9, 0.8, 0.95, 0.9)) == 30.0
    assert course.reached(_course(0.1, 0.9, 0.89, 0.95)) is None
    assert course.reached(_course(0.5, 0.7), least=0.5) == 0.0


@pytest.mark.parametrize("name", sorted(ARMS))
@pytest.mark.parametrize("operations", [8, 16, 32])
def test_all_arms_have_equal_leaves_and_differ_in_nothing_else(name: str, operations: int) -> None:
    task, setting = Task(operations), Setting(4, 32, 1e-3)
    of_arm = arms.recipe(ARMS[name], task, setting, 3).model_dump()
    of_iid = arms.recipe(ARMS["iid-grpo"], task, setting, 3).model_dump()
    generate, optimise = of_arm.pop("generate"), of_arm.pop("optimise")
    assert name == "dars" or generate["trees"] * _leaves(generate) == 32  # it adds to the hard ones
    assert generate["max_new_tokens"] == 6 * operations + 1
    of_iid.pop("generate")
    rest = of_iid.pop("optimise")
    for part in ("advantage", "advantage_settings"):
        optimise.pop(part), rest.pop(part)
    assert optimise == rest
    assert {**of_arm, "name": ""} == {**of_iid, "name": "", **ARMS[name].changes}
    assert not ARMS[name].changes or name in SCREENED


def _leaves(generate: dict[str, Any]) -> int:
    settings = generate["settings"]
    if generate["policy"] == "tree-grpo":
        return int(1 + settings["rounds"] * settings["expansions"])
    if generate["policy"] == "eptree":
        forks = settings["rounds"] * settings["forks"] * settings["continuations"]
        return int(settings["chains"] * (1 + forks))
    return int(settings["width"])


def test_forks_fill_the_answer() -> None:
    settings = arms.forks(Task(16), 16)["settings"]
    assert (settings["segment"], settings["max_depth"]) == (24, 5)  # the fifth has the end alone
    assert arms.forks(Task(32), 8)["settings"]["segment"] == 64


class _Process:
    """A process whose updates take tokens, and whose accuracy is told."""

    recipe = SimpleNamespace(eval=SimpleNamespace(max_rows=512))

    def __init__(self, *accuracies: float) -> None:
        self._left = list(accuracies)
        self._now = 0.0

    def accuracy(self, rows: int | None = None) -> float:
        if rows is not None:  # a few rows come first
            self._now = self._left.pop(0)
        return self._now

    def step(self, number: int) -> Counts:
        return Counts(sampled=15_000)


class _Slow(_Process):
    """A process of whose update a part is growth."""

    def step(self, number: int) -> Counts:
        self.clock += 5.0
        return Counts(sampled=15_000, growing_s=2.0, processor_s=4.0)


def test_seconds_are_those_of_whole_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    process = _Slow(0.1, 0.2, 0.3)
    process.clock = 0.0
    monkeypatch.setattr(course.time, "monotonic", lambda: process.clock)
    last = course.run(process, 30_000, say=lambda line: None)["points"][-1]
    assert (last["updates"], last["seconds"]) == (2, 10.0)
    assert (last["growing_s"], last["processor_s"]) == (4.0, 8.0)


def _seen(process: Any, cap: int) -> list[tuple[int, int, int]]:
    points = course.run(process, cap, say=lambda line: None)["points"]
    return [(point["sampled"], point["updates"], point["rows"]) for point in points]


def test_a_policy_that_is_far_is_measured_on_few_rows_but_for_the_last_time() -> None:
    few, whole = course.FEW, 512
    assert _seen(_Process(0.1, 0.2, 0.3, 0.4), 50_000) == [
        (0, 0, few),
        (30_000, 2, few),  # the first updates beyond each 20,000 tokens
        (45_000, 3, few),
        (60_000, 4, whole),
    ]


def test_a_run_ends_at_its_second_right_measurement_in_a_row() -> None:
    assert _seen(_Process(0.1, 0.75, 0.9, 0.95, 1.0), 10**6) == [
        (0, 0, course.FEW),
        (30_000, 2, 512),
        (45_000, 3, 512),
        (60_000, 4, 512),
    ]


def test_without_few_rows_first_all_are_measured_each_time_and_as_often_as_asked() -> None:
    class Whole(_Process):
        def accuracy(self, rows: int | None = None) -> float:
            assert rows is None
            return self._left.pop(0)

    process: Any = Whole(0.2, 0.5, 0.92, 0.93)
    points = course.run(process, 10**6, say=lambda line: None, grid=30_000, few=0)["points"]
    assert [(p["accuracy"], p["rows"], p["updates"]) for p in points] == [
        (0.2, 512, 0),
        (0.5, 512, 2),
        (0.92, 512, 4),
        (0.93, 512, 6),
    ]


def test_tokens_of_a_run_that_did_not_get_there_are_its_cap_not_those_of_its_last_update() -> None:
    cell = {"cap": 1000, "points": [{"accuracy": 0.1, "sampled": 1009, "processor_s": 7.0}]}
    assert choice.spent(cell) == Spent(1000.0, censored=True)
    assert choice.spent(cell, "processor_s") == Spent(7.0, censored=True)
