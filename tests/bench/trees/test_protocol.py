"""What the protocol chooses from measured runs, and in which order it asks for them."""

from collections.abc import Callable
from typing import Any

from bench.trees import protocol
from bench.trees.arms import RATES, SHAPES, Setting
from bench.trees.protocol import MAIN, OTHERS, RIVALS, SEEDS, TUNING, Wanted

GOOD = Setting(8, 16, RATES[1])


def _cells(costs: Callable[[Wanted], float | None]) -> Callable[[Wanted], Any]:
    """Return runs that got there after so many tokens; one of none has not got there."""

    def get(wanted: Wanted) -> dict[str, Any]:
        cost = costs(wanted)
        ends = (0.95, 0.95) if cost is not None else (0.1, 0.6)
        points = [
            {"accuracy": accuracy, "sampled": cost if cost is not None else 1000}
            for accuracy in ends
        ]
        return {"points": points, "cap": 1000}

    return get


def test_every_arm_is_tried_with_the_same_settings_and_never_on_reported_seeds() -> None:
    grids = {name: protocol.grid(name) for name in (*RIVALS, *OTHERS)}
    assert all(len(grid) == len(SHAPES) * len(RATES) == 9 for grid in grids.values())
    assert all(grid == grids["iid-grpo"] for grid in grids.values())
    assert all(s.groups * s.leaves == 128 for s in grids["iid-grpo"])
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
    assert protocol._cost(near) == 1200 < protocol._cost(far)


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


def test_what_a_run_spent_is_a_bound_where_it_did_not_get_there() -> None:
    points = [{"accuracy": a, "sampled": 10, "seconds": 7.5} for a in (0.2, 0.5)]
    spent = protocol.spent({"points": points, "cap": 10}, "seconds")
    assert (spent.value, spent.censored) == (7.5, True)
