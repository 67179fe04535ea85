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


def test_a_policy_that_never_ends_is_named():
    with pytest.raises(InvalidInput, match="never says that its tree is done; it has 0 leaves"):
        simulate(resolve({**BASE, "generate": {"policy": "tests.rollout.growing:Failing", "settings": {"after": 99}}}))
