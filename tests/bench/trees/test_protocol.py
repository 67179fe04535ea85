"""What the protocol chooses from measured runs, and in which order it asks for them."""

from collections.abc import Callable
from typing import Any

import pytest

from bench.trees import choice, course, protocol
from bench.trees.arms import ARMS, RATES, SHAPES, Setting, Task, no_facts
from bench.trees.protocol import (
    CONTROL,
    MAIN,
    OTHERS,
    RIVALS,
    SEEDS,
    TREES,
    TUNING,
    WIDENED,
    Wanted,
)
from bench.trees.stepwise import states

GOOD = Setting(8, 16, RATES[1])


def _cells(costs: Callable[[Wanted], float | None]) -> Callable[[Wanted], Any]:
    """Return runs that got there after so many tokens; one of none has not got there."""

    def get(wanted: Wanted) -> dict[str, Any]:
        cost = costs(wanted)
        ends = (0.95, 0.95) if cost is not None else (0.1, 0.6)
        points = [
            {"accuracy": accuracy, "sampled": cost if cost is not None else 1000, "updates": 10}
            for accuracy in ends
        ]
        return {"points": points, "cap": 1000}

    return get


def test_every_arm_is_tried_with_the_same_settings_and_never_on_reported_seeds() -> None:
    grids = {name: protocol.grid(name) for name in (*RIVALS, *OTHERS)}
    assert all(len(grid[:9]) == len(SHAPES) * len(RATES) == 9 for grid in grids.values())
    assert all(grid[:9] == grids["iid-grpo"][:9] for grid in grids.values())
    assert all(s.groups * s.leaves == 128 for grid in grids.values() for s in grid)
    assert all(set(grids[name][9:]) <= set(grids["iid-grpo"]) for name in WIDENED)
    assert not set(TUNING) & {seed for seeds in SEEDS.values() for seed in seeds}
    assert (len(SEEDS[MAIN]), {len(s) for t, s in SEEDS.items() if t != MAIN}) == (10, {5})


def test_the_best_setting_has_the_lowest_geometric_mean() -> None:
    def cost(wanted: Wanted) -> float:
        if wanted.setting == GOOD:
            return {100: 100, 101: 900}[wanted.seed]  # geometric mean 300, mean 500
        return 310

    assert protocol.tuned("forks-rose", _cells(cost)) == GOOD


def test_a_run_that_did_not_get_there_costs_more_than_its_cap_and_less_if_it_was_close() -> None:
    get = _cells(lambda wanted: None if wanted.setting == GOOD else 999)
    assert protocol.tuned("forks-rose", get) != GOOD
    far, near = ({"points": [{"accuracy": a}], "cap": 1000} for a in (0.2, 0.8))
    assert choice.cost(near) == 1200 < choice.cost(far)


def test_the_estimator_of_independent_samples_is_chosen_at_the_middle_shape_alone() -> None:
    asked: set[tuple[int, int]] = set()

    def cost(wanted: Wanted) -> float:
        asked.add((wanted.setting.groups, wanted.setting.leaves))
        return 100 if wanted.arm.name == "iid-rloo" else 200

    assert protocol.rival(_cells(cost)) == "iid-rloo"
    assert asked == {SHAPES[1]}


def test_nothing_is_chosen_while_a_run_is_missing() -> None:
    whole = _cells(lambda wanted: 100)

    def lacking(wanted: Wanted) -> Any:
        return None if wanted == protocol.first_look("iid-rloo")[-1] else whole(wanted)

    assert protocol.rival(lacking) is None
    assert {w.arm.name for w in protocol.reported(lacking)} == set(OTHERS)
    assert {w.arm.name for w in protocol.reported(whole)} == {"iid-grpo", *OTHERS}


def _by_arm(**costs: float) -> Callable[[Wanted], Any]:
    return _cells(lambda wanted: costs.get(wanted.arm.name.replace("-", "_"), 500.0))


def test_the_longest_task_has_three_arms() -> None:
    runs = protocol.reported(_by_arm(treepo=100, iid_grpo=200))
    longest = {w.arm.name for w in runs if w.task.operations == protocol.LONGEST}
    assert longest == {"iid-grpo", CONTROL, "treepo"}


def test_the_trees_of_the_bar_are_chosen_when_all_trees_are_tuned() -> None:
    whole = _by_arm(treepo=100)

    def lacking(wanted: Wanted) -> Any:
        return None if wanted == protocol.tuning(TREES[-1])[-1] else whole(wanted)

    assert (protocol.tree(whole), protocol.tree(lacking)) == ("treepo", None)


def test_equal_tokens_scale_the_prompts_and_tune_the_rate_on_the_tuning_seeds() -> None:
    get = _by_arm(treepo=100, iid_grpo=250)
    tuned = protocol.tuned("treepo", get)
    assert tuned is not None
    runs = protocol.matched(get)
    assert {w.seed for w in runs} == set(TUNING)
    assert {w.setting for w in runs} == {
        Setting(round(tuned.groups * 2.5), tuned.leaves, rate) for rate in RATES
    }
    final = protocol.matched_runs(runs, get)
    assert [w.seed for w in final] == list(SEEDS[MAIN])
    assert {w.arm.name for w in final} == {"treepo"}


def test_the_rival_is_tried_with_updates_as_small_as_the_trees() -> None:
    get = _by_arm(treepo=100, iid_grpo=250)
    tuned = protocol.tuned("iid-grpo", get)
    assert tuned is not None
    runs = protocol.matched_rival(get)
    assert {(w.arm.name, w.seed) for w in runs} == {("iid-grpo", seed) for seed in TUNING}
    assert {w.setting for w in runs} == {
        Setting(round(tuned.groups / 2.5), tuned.leaves, rate) for rate in RATES
    }


def test_equal_tokens_wait_for_what_they_scale_by() -> None:
    whole = _by_arm(treepo=100)

    def lacking(wanted: Wanted) -> Any:
        return None if wanted == protocol.tuning(TREES[-1])[-1] else whole(wanted)

    for ask in (protocol.matched, protocol.matched_rival):
        assert ask(lacking) == [] == protocol.matched_runs([], whole)
        assert protocol.matched_runs(ask(whole), lambda wanted: None) == []


def test_the_screen_has_its_own_seeds_and_one_setting() -> None:
    runs = protocol.screened(lambda wanted: None)
    assert not {w.seed for w in runs} & set(TUNING)
    assert {w.setting for w in runs} == {protocol.SCREEN}


def test_what_a_run_spent_is_a_bound_where_it_did_not_get_there() -> None:
    points = [{"accuracy": a, "sampled": 10, "seconds": 7.5} for a in (0.2, 0.5)]
    spent = choice.spent({"points": points, "cap": 10}, "seconds")
    assert (spent.value, spent.censored) == (7.5, True)


def _wanted(arm: str, task: Task = MAIN, setting: Setting = GOOD, seed: int = 0) -> Wanted:
    return Wanted(ARMS[arm], task, setting, seed)


def test_a_run_is_asked_with_all_that_decides_about_its_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = _wanted("treepo").asked()
    assert asked == _wanted("treepo").asked()
    others = [
        _wanted("treepo", seed=1),
        _wanted("treepo", task=Task(8)),
        _wanted("treepo", setting=Setting(4, 32, RATES[1])),
        _wanted("iid-grpo"),
    ]
    assert all(other.asked() != asked for other in others)
    monkeypatch.setattr(protocol, "CAPS", {16: 7})
    assert _wanted("treepo").asked() != asked
    monkeypatch.undo()
    monkeypatch.setattr(course, "GRID", 7)
    assert _wanted("treepo").asked() != asked


def test_a_run_gets_the_facts_of_its_arm_and_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "InProcess", lambda recipe, facts: facts)
    monkeypatch.setattr(course, "run", lambda process, cap: {"facts": process, "cap": cap})
    assert _wanted(CONTROL).measure() == {"facts": states, "cap": 1_000_000}
    assert _wanted("treepo").measure()["facts"] is no_facts


def test_three_arms_go_on_beyond_the_longest_tasks_cap_under_names_of_their_own() -> None:
    further = protocol.beyond(_cells(lambda wanted: 100 if wanted.arm.name == "treepo" else 200))
    assert {wanted.arm.name for wanted in further} == {"iid-grpo", "treepo", CONTROL}
    assert {wanted.task for wanted in further} == {Task(32)}
    assert len(further) == 3 * len(SEEDS[Task(32)])
    assert all(wanted.cap == protocol.BEYOND_CAP for wanted in further)
    assert all(wanted.name.startswith("K32-whole-beyond/") for wanted in further)
