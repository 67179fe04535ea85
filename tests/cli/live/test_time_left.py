"""The time left: right within 30 % from the first quarter on, on recorded and on made-up runs."""

from collections.abc import Iterator
from itertools import accumulate

import pytest

from banyan.progress.time_left import Pace, Work
from tests.cli.live.recorded_runs import (
    ENVIRONMENT,
    LIMITED,
    LOADED,
    QUICKSTART,
    ROWS,
    UNEVEN,
    Recorded,
)

MOST = 0.3
UNIX = 1_700_000_000.0  # the clock of the store


def made(
    steps: int, every: int, *, step: float, evaluation: float, first: tuple[float, ...] = ()
) -> Recorded:
    """Return a run of even parts, but for its first steps."""
    work, at = Work(steps=steps, every=every, rows=ROWS), 5.0
    policies, evaluations = [at], {}
    for number in range(steps + 1):
        if number:
            at += first[number - 1] if number <= len(first) else step
            policies.append(at)
        if work.measured(number):
            evaluations[number] = at, at + evaluation
            at += evaluation
    return Recorded(work, tuple(policies), (0,) * len(policies), evaluations)


def estimates(
    run: Recorded, pace: Pace, after: int = -1, epoch: int = 1, late: float = 0.0
) -> Iterator[tuple[int, float, float]]:
    """Feed a run to the estimate, a second at a time; yield step, estimate and truth.

    after: the last step before this session; late: seconds that its loading takes
    """
    begun = run.policies[after] if after >= 0 else 0.0
    shown, end = max(0, after), run.end - begun + late
    for second in range(round(end)):
        now = second - late + begun
        for step, at in enumerate(run.policies):
            if begun < at <= now:
                pace.step(epoch, step, at - begun + late, run.tokens[step])
                shown = max(shown, step)
        for step, (first, last) in run.evaluations.items():
            if first >= begun and first <= now:
                shown = max(shown, step)
                share = min(1.0, (now - first) / (last - first))
                pace.evaluation(step, int(ROWS * share), second)
            elif last < begun:
                pace.evaluation(step, ROWS, second)
        left = pace.left(shown, second, lived=now)
        yield shown, -1.0 if left is None else left, end - second


def wrong(run: Recorded, found: Iterator[tuple[int, float, float]]) -> list[tuple[int, int, int]]:
    """Return the estimates after the first quarter that are wrong: by more than 30 % of the time
    that is left, and by more than 2 % of the whole run's.
    """
    return [
        (step, round(left), round(truth))
        for step, left, truth in found
        if step >= run.quarter and abs(left - truth) > max(MOST * truth, 0.02 * run.end)
    ]


@pytest.mark.parametrize("run", [ENVIRONMENT, LIMITED])
def test_runs_whose_steps_are_alike(run: Recorded) -> None:
    assert wrong(run, estimates(run, Pace(run.work))) == []


@pytest.mark.parametrize("run", [QUICKSTART, UNEVEN, LOADED])
def test_runs_whose_steps_change_in_ways_that_nobody_could_know(run: Recorded) -> None:
    """Three quarters of the estimates are right. The others follow steps that took twice as long as
    the later ones: another program had the cores, or more groups taught.
    """
    found = [row for row in estimates(run, Pace(run.work)) if row[0] >= run.quarter]
    errors = sorted(abs(left - truth) / truth for _, left, truth in found if truth > 0)
    assert errors[len(errors) // 2] < 0.2
    assert len(wrong(run, iter(found))) < 0.25 * len(found)


@pytest.mark.parametrize(
    "run",
    [
        made(40, 0, step=2.0, evaluation=20.0),
        made(40, 5, step=2.0, evaluation=20.0),
        made(40, 0, step=2.0, evaluation=60.0, first=(9.0, 6.0, 4.0)),
        made(8, 0, step=10.0, evaluation=3.0),
    ],
    ids=["the last evaluation counts", "evaluations between", "warm-up", "few steps"],
)
def test_made_up_runs(run: Recorded) -> None:
    assert wrong(run, estimates(run, Pace(run.work))) == []


@pytest.mark.parametrize("after", [12, 15, 29, 41])
def test_a_resumed_run_is_estimated_at_once_from_its_earlier_steps(after: int) -> None:
    """Neither the pause of weeks nor loading the models counts as time of steps."""
    run, late = ENVIRONMENT, 20.0
    pace = Pace(run.work)
    for step, at in enumerate(run.policies[: after + 1]):
        pace.step(1, step, UNIX + at, run.tokens[step])
    pace.begin(None)
    found = [
        (step, left, truth)
        for step, left, truth in estimates(run, pace, after, epoch=2, late=late)
        if truth <= run.end - run.policies[after]  # once the models are loaded
    ]
    bad = wrong(run, iter(found))
    assert abs(found[0][1] - found[0][2]) < MOST * found[0][2]
    assert len(bad) < 0.05 * len(found), "after twelve steps that were a third longer"


def test_a_resumed_run_on_a_slower_machine_is_estimated_by_its_steps_there() -> None:
    pace = Pace(Work(steps=40))
    for step in range(21):
        pace.step(1, step, UNIX + 2.0 * step)
    pace.begin(None)
    assert pace.left(20, 5.0) == pytest.approx(40.0)
    for step in range(21, 33):
        pace.step(2, step, 6.0 * step)
    assert pace.left(32, 6.0 * 32) == pytest.approx(8 * 6.0)


def test_a_step_with_an_evaluation_that_took_no_longer_than_others_says_nothing_of_it() -> None:
    pace = Pace(Work(steps=4, rows=ROWS))
    for step, at in enumerate((0.0, 20.0, 45.0)):
        pace.step(1, step, UNIX + at)
    pace.begin(None)
    pace.step(2, 2, 0.0)
    pace.step(2, 4, 60.0)
    assert pace.left(4, 61.0) is None, "not 0: the last evaluation is still to come"
    pace.evaluation(4, 0, 61.0)
    pace.evaluation(4, ROWS // 2, 66.0)
    assert pace.left(4, 66.0) == pytest.approx(5.0)


def test_a_session_after_the_last_step_counts_the_evaluation() -> None:
    run = ENVIRONMENT
    pace = Pace(run.work)
    for step, at in enumerate(run.policies):
        pace.step(1, step, UNIX + at)
    pace.begin(None)
    begun, end = run.evaluations[45]
    assert pace.left(45, 3.0) == pytest.approx(end - begun, rel=MOST)


def test_an_evaluation_that_was_half_done_tells_its_time_by_the_other_half() -> None:
    pace = Pace(Work(steps=4, rows=ROWS))
    pace.evaluation(4, 100, 0.0)
    assert pace.left(4, 1.0) is None
    pace.evaluation(4, 150, 5.0)
    assert pace.left(4, 5.0) == pytest.approx(5.0)
    pace.evaluation(4, ROWS, 10.0)
    assert pace.left(4, 10.0) == 0.0 and pace.of_an_evaluation(10.0) == pytest.approx(20.0)


def test_an_evaluation_ends_by_its_rows_or_by_the_clock_whichever_is_sooner() -> None:
    """One took 20 s; of the other rows end in bursts."""
    pace = Pace(Work(steps=1, rows=ROWS))
    pace.evaluation(0, 0, 0.0)
    pace.evaluation(0, ROWS, 20.0)
    pace.step(1, 1, 100.0)
    pace.evaluation(1, 0, 100.0)
    assert pace.left(1, 105.0) == pytest.approx(15.0), "no row is over yet"
    pace.evaluation(1, ROWS * 3 // 4, 110.0)
    assert pace.left(1, 110.0) == pytest.approx(5.0), "a burst"
    assert pace.left(1, 130.0) == pytest.approx(5.0), "it takes longer than the first"


def test_rows_end_when_those_of_the_evaluation_before_did() -> None:
    """Of 20 s, it took 8 until the first rows were over, and 4 from the last but one to the end."""
    pace = Pace(Work(steps=1, rows=ROWS))
    for at, rows in ((0.0, 0), (8.0, 20), (16.0, ROWS - 20), (20.0, ROWS)):
        pace.evaluation(0, rows, at)
    pace.step(1, 1, 100.0)
    pace.evaluation(1, 0, 100.0)
    assert pace.left(1, 105.0) == pytest.approx(15.0)
    assert pace.left(1, 115.0) == pytest.approx(12.0), "no row is over: as much as after the first"
    pace.evaluation(1, 20, 118.0)
    pace.evaluation(1, 20, 120.0)
    assert pace.left(1, 120.0) == pytest.approx(10.0), "by the clock since the first"
    pace.evaluation(1, ROWS // 2, 122.0)
    assert pace.left(1, 122.0) == pytest.approx(8.0)
    pace.evaluation(1, ROWS - 20, 126.0)
    assert pace.left(1, 129.0) == pytest.approx(1.0)


def test_an_evaluation_that_was_half_done_says_nothing_about_when_rows_end() -> None:
    pace = Pace(Work(steps=1, rows=ROWS))
    for at, rows in ((0.0, ROWS // 2), (9.0, ROWS // 2 + 1), (10.0, ROWS)):
        pace.evaluation(0, rows, at)
    pace.step(1, 1, 100.0)
    pace.evaluation(1, 0, 100.0)
    pace.evaluation(1, ROWS // 2, 110.0)
    assert pace.left(1, 110.0) == pytest.approx(10.0)


def test_nothing_is_guessed_before_the_first_step() -> None:
    pace = Pace(Work(steps=4, rows=ROWS))
    assert pace.left(0, 1.0) is None
    pace.step(1, 0, 1.0)
    pace.evaluation(0, 0, 1.0)
    pace.evaluation(0, ROWS, 9.0)
    assert pace.left(0, 9.0) is None
    pace.step(1, 1, 11.0)
    assert pace.left(1, 11.0) == pytest.approx(3 * 2.0 + 8.0)
    assert pace.left(1, 12.0) == pytest.approx(3 * 2.0 + 8.0 - 1.0), "the clock runs"
    assert pace.left(1, 99.0) == pytest.approx(2.1 * 2.0 + 8.0), "but not into the next step"


def test_a_step_that_takes_longer_than_others_is_not_said_to_be_over() -> None:
    pace = Pace(Work(steps=2))
    pace.step(1, 0, 0.0)
    pace.step(1, 1, 20.0)
    assert pace.left(1, 39.0) == pytest.approx(2.0)
    assert pace.left(1, 90.0) == pytest.approx(2.0)


def test_a_run_without_evaluations_has_only_steps() -> None:
    pace = Pace(Work(steps=10))
    for step, at in enumerate(accumulate([1.0, 3.0, 3.0, 3.0, 3.0])):
        pace.step(1, step, at)
        pace.step(1, step, at + 100.0)  # a restarted gateway sends everything once more
    assert pace.left(4, 13.0) == pytest.approx(18.0)


def test_the_limit_of_the_time_ends_a_run_before_its_steps() -> None:
    pace = Pace(Work(steps=1000, rows=ROWS, seconds=600.0))
    pace.evaluation(0, 0, 0.0)
    pace.evaluation(0, ROWS, 30.0)
    for step in range(1, 11):
        pace.step(1, step, 30.0 + 10.0 * step)
    assert pace.left(10, 130.0, lived=130.0) == pytest.approx(600.0 - 130.0 + 30.0)
    assert pace.left(10, 130.0, lived=700.0) == pytest.approx(30.0), "the last evaluation"


@pytest.mark.parametrize(
    ("every", "step", "later"),
    [(0, 0, 1), (0, 40, 0), (10, 0, 4), (10, 9, 4), (10, 10, 3), (7, 35, 1)],
)
def test_evaluations_that_are_still_to_come(every: int, step: int, later: int) -> None:
    work = Work(steps=40, every=every, rows=ROWS)
    assert work.evaluations_after(step) == later
    assert work.evaluations_after(step) == sum(map(work.measured, range(step + 1, 41)))
    assert Work(steps=40, every=every).evaluations_after(step) == 0
