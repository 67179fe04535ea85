"""The forecast of the time of steps: by their work, as far as times follow it."""

import random

import pytest

from banyan.progress.step_time import Steps, per_step, trend


def test_even_steps_go_on_as_they_were() -> None:
    assert per_step([Steps(1, 2.0, 100.0)] * 8, 30) == pytest.approx(2.0)
    assert per_step([Steps(4, 8.0), Steps(2, 4.0)], 30) == pytest.approx(2.0)


def test_the_first_two_steps_are_left_out_once_there_are_others() -> None:
    warm = [Steps(1, 9.0), Steps(1, 6.0)]
    assert per_step(warm, 10) == pytest.approx(7.5)
    assert per_step(warm + [Steps(1, 2.0)] * 3, 10) == pytest.approx(2.0)


def test_times_that_follow_a_falling_work_are_forecast_by_it() -> None:
    """Ever fewer groups teach: a second for sampling, and 10 ms for each token."""
    works = [600.0 * 0.85**step for step in range(40)]
    steps = [Steps(1, 1.0 + 0.01 * work, work) for work in works]
    for over in range(10, 40):
        truth = sum(step.seconds for step in steps[over:]) / (40 - over)
        assert per_step(steps[:over], 40 - over) == pytest.approx(truth, rel=0.3)


def test_noise_is_not_taken_for_work() -> None:
    draw = random.Random(0)
    steps = [Steps(1, draw.uniform(1.0, 3.0), draw.uniform(900.0, 1100.0)) for _ in range(20)]
    assert per_step([*steps, Steps(1, 2.0, 200.0)], 20) == pytest.approx(2.0, rel=0.15)


def test_a_trend_is_damped_and_goes_below_nothing_never() -> None:
    assert trend([10.0] * 5, 20) == pytest.approx(10.0)
    falling = trend([100.0, 80.0, 60.0, 40.0, 20.0, 0.0], 50)
    assert 0.0 <= falling < 40.0
    assert trend([5.0, 5.0], 0) == pytest.approx(5.0)
