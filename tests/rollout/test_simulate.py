"""What `banyan simulate` counts."""

import pytest

from banyan.errors import InvalidInput
from banyan.recipe_file import resolve
from services.rollout.simulate import simulate

BASE = {"name": "x", "model": "none", "task": {"name": "arithmetic"}}


def test_independent_samples_save_nothing():
    result = simulate(resolve({**BASE, "generate": {"policy": "iid", "settings": {"width": 6}, "max_new_tokens": 9}}))
    assert result == {"leaves": 6, "sampled_tokens": 54, "iid_tokens": 54, "saved": 0.0}


def test_a_binary_tree_of_depth_four_saves_what_the_card_says():
    settings = {"segment": 8, "max_depth": 4, "width": 16}
    generate = {"policy": "treepo", "settings": settings, "max_new_tokens": 32, "trees": 3}
    result = simulate(resolve({**BASE, "generate": generate}))
    assert result["leaves"] == 48 and result["sampled_tokens"] == 3 * 8 * 30
    assert result["saved"] == pytest.approx(0.53125)


def test_a_simulation_that_would_not_end_says_what_to_make_smaller():
    generate = {"policy": "iid", "settings": {"width": 4}, "max_new_tokens": 1_000_000}
    with pytest.raises(InvalidInput, match=r"a simulation ends at 500000; generate\.max_new_tokens is 1000000"):
        simulate(resolve({**BASE, "generate": generate}))


def test_scripted_settings_of_the_recipe_are_used():
    resources = {"engine": "scripted", "engine_settings": {"accuracy": 1.0, "latency_s": 9.0}}
    result = simulate(resolve({**BASE, "generate": {"settings": {"width": 4}}, "resources": resources}))
    assert result["sampled_tokens"] == 4 * len("12") + 4  # 7 + 5, and the end


def waiting(accuracy: float | None, **more: object) -> dict:
    settings = {"accuracy": accuracy} if accuracy is not None else {"chain": {"": {"a": 1.0}}}
    generate = {"policy": "dars", "settings": {"width": 8, "max_width": 32}}
    return {**BASE, "generate": generate, "resources": {"engine": "scripted", "engine_settings": settings}, **more}


def test_a_policy_that_waits_for_scores_gets_those_of_the_scripted_sums():
    assert simulate(resolve(waiting(0.0)))["leaves"] == 32 and simulate(resolve(waiting(1.0)))["leaves"] == 8
    with pytest.raises(InvalidInput, match=r"set engine_settings\.accuracy"):
        simulate(resolve(waiting(None)))


def test_a_deterministic_run_does_not_wait_for_scores():
    with pytest.raises(InvalidInput, match="set deterministic: false"):
        resolve(waiting(0.5, deterministic=True))


def test_a_tree_that_grows_by_rooms_gets_what_its_prompt_brings():
    control = {"rooms": "xrpo", "rooms_settings": {"rollouts": 12}}
    generate = {"policy": "rounds", "settings": {"start": 4, "most": 20}, "max_new_tokens": 9}
    assert simulate(resolve({**BASE, "generate": generate, "control": control}))["leaves"] == 12


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"control": {}}, "set control.rooms"),
        ({"generate": {"policy": "iid"}}, "needs a tree policy that grows by rooms"),
        ({"generate": {"policy": "rounds", "trees": 2}}, "set generate.trees: 1"),
        ({"generate": {"policy": "rounds", "settings": {"most": 12}}}, "must lie between start=4 and most=12"),
        ({"control": {"rooms": "xrpo", "rooms_settings": {"alpha": 2.0}}}, "alpha must lie between 0 and 1"),
        ({"control": {"rooms": "share"}}, "there is no rooms plugin"),
    ],
)
def test_rooms_and_policies_that_do_not_fit_are_refused(change: dict, problem: str):
    with pytest.raises(InvalidInput, match=problem):
        resolve({**BASE, "generate": {"policy": "rounds"}, "control": {"rooms": "xrpo"}, **change})


def test_a_policy_that_never_ends_is_named():
    with pytest.raises(InvalidInput, match="never says that its tree is done; it has 0 leaves"):
        simulate(resolve({**BASE, "generate": {"policy": "tests.rollout.growing:Failing", "settings": {"after": 99}}}))
