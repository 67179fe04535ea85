"""Signal over noise of gradients, against what follows by hand."""

import numpy as np
import pytest

from banyan import registry
from bench.information import chance
from bench.information.chance import FACTS, Shape, gradient, grow
from bench.information.measure import jackknife, ratio, signals, table


def test_one_step_of_two_samples_is_as_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples of one step: dr-grpo gives r − ½ where they differ, so that the mean of
    (r − ½)(r − p) over the two is ¼ whatever p is, and 0 where they agree.
    """
    monkeypatch.setattr(chance, "STEPS", 1)
    right_F = np.full(FACTS, 0.3)
    estimator = registry.build("optimise", "dr-grpo", {})
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(200):
        grown = grow(Shape((2,)), right_F, rng)
        differ = len(set(grown.rewards.values())) == 2
        total = gradient(grown, estimator, right_F).sum()
        facts = {int(f) for drawn, _ in grown.drawn.values() for f in drawn}
        assert len(facts) == 1, "both answer the same prompt"
        assert total == pytest.approx(0.25 if differ else 0.0)
        seen.add(differ)
        assert grown.tokens == 2 * (chance.TOKENS + 1)
    assert seen == {True, False}


def test_a_tree_costs_what_its_runs_have_and_its_paths_share() -> None:
    grown = grow(Shape((2, 2, 2)), np.full(FACTS, 0.9), np.random.default_rng(3))
    runs = [Shape((2, 2, 2)).steps(run) for run in range(3)]
    assert sum(runs) == 16 and len(grown.rewards) == 8
    assert grown.tokens == 6 * (2 * runs[0] + 4 * runs[1] + 8 * runs[2]) + 8
    one = grow(Shape((8,)), np.full(FACTS, 0.9), np.random.default_rng(3))
    assert one.tokens == 8 * (6 * 16 + 1)


def test_a_path_is_right_if_all_its_steps_are() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        grown = grow(Shape((2, 2)), np.full(FACTS, 0.95), rng)
        for leaf, reward in grown.rewards.items():
            last = grown.tree.segments[leaf.segment]
            steps = np.concatenate([grown.drawn[last.parent][1], grown.drawn[leaf.segment][1]])
            assert reward == float(steps.all())


def test_the_ratio_is_that_of_known_gradients() -> None:
    rng = np.random.default_rng(2)
    made = np.array([3.0, 4.0, 0.0]) + rng.normal(0, 2.0, (40_000, 3))
    assert ratio(made) == pytest.approx(25 / 12, rel=0.03)
    value, error = jackknife(made)
    assert abs(value - 25 / 12) < 4 * error and 0 < error < 0.05
    assert ratio(rng.normal(0, 1, (40_000, 3))) == pytest.approx(0.0, abs=3e-4)
    assert ratio(np.zeros((10, 3))) == 0.0


def test_a_trees_gradient_points_where_that_of_independent_samples_does() -> None:
    """Both estimate the gradient of the same expected reward."""
    right_F, estimator = table("late"), registry.build("optimise", "dr-grpo", {})
    means = []
    for shape in (Shape((8,)), Shape((2, 2, 2))):
        rng = np.random.default_rng(4)
        made = [gradient(grow(shape, right_F, rng), estimator, right_F) for _ in range(250)]
        means.append(np.mean(made, 0))
    cosine = means[0] @ means[1] / np.linalg.norm(means[0]) / np.linalg.norm(means[1])
    assert cosine > 0.7


def test_all_estimators_see_the_same_trees() -> None:
    found = signals(Shape((4,)), ("grpo", "dr-grpo"), table("early"), trees=60)
    assert found["grpo"][2] == found["dr-grpo"][2] > 0
