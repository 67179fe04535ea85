"""Steps that are not finite: skipped, counted, reported; too many in a row end the run."""

import itertools
from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from services.learner import step_report
from services.learner.checkpoints import checkpoint
from services.learner.data.prepare import Lesson
from services.learner.training import divergence
from services.learner.training.trainer import StepReport, Trainer
from services.learner.training.trainer_thread import Timed
from tests.learner.rig import RUN, MemoryStore, Rig, grown, recipe

BAD, GOOD = {"not_finite": 1.0, "applied": 0.0}, {"not_finite": 0.0, "applied": 1.0}
PARTLY = {"not_finite": 1.0, "applied": 1.0}  # some optimizer steps were skipped


@pytest.mark.parametrize(
    ("measured", "step", "expected"),
    [
        ([], 0, 0),
        ([(1, BAD), (2, BAD)], 2, 2),
        ([(2, BAD), (1, GOOD), (3, BAD)], 3, 2),
        ([(1, BAD), (2, BAD), (3, GOOD)], 3, 0),
        # A checkpoint of step 2: later steps are trained again.
        ([(1, BAD), (2, BAD), (3, GOOD)], 2, 2),
        ([(1, BAD), (3, BAD)], 3, 1),
        ([(1, BAD), (2, PARTLY), (3, BAD)], 3, 1),
        ([(1, PARTLY), (2, PARTLY)], 2, 0),
        # Announced again by the next learner.
        ([(1, BAD), (1, {})], 1, 1),
    ],
)
def test_the_count_follows_from_stored_metrics(
    measured: list[tuple[int, dict[str, float]]], step: int, expected: int
) -> None:
    assert divergence.trailing(measured, step) == expected


async def test_a_run_whose_steps_are_not_finite_ends_with_the_cause(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_clip", lambda self: float("nan"))
    store = MemoryStore(grown)
    wanted = recipe(9, max_not_finite=3)
    with pytest.raises(
        InvalidInput, match=r"the last 3 steps up to step 3 .* not finite.*learning_rate"
    ):
        await Rig(tmp_path, tiny_folder, store, wanted).run()
    assert [p.metrics["not_finite"] for p in store.puts[1:]] == [1.0, 1.0, 1.0]
    assert [p.metrics["applied"] for p in store.puts[1:]] == [0.0, 0.0, 0.0]
    assert len({p.policy.digest for p in store.puts}) == 1
    kept = checkpoint.newest(tmp_path / "checkpoints", RUN)
    assert kept is not None and kept[1].step == 3
    with pytest.raises(InvalidInput, match="the last 3 steps"):  # at once, by the next learner
        await Rig(tmp_path, tiny_folder, store, wanted).run()
    assert len(store.batches) == 3


async def test_steps_in_between_that_are_finite_let_it_go_on(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, turns = Trainer._clip, itertools.cycle([True, True, False])
    monkeypatch.setattr(Trainer, "_clip", lambda self: float("nan") if next(turns) else plain(self))
    store = MemoryStore(grown)
    await Rig(tmp_path, tiny_folder, store, recipe(6, max_not_finite=3)).run()
    assert [p.metrics["not_finite"] for p in store.puts[1:]] == [1, 1, 0, 1, 1, 0]


@pytest.mark.parametrize("every", [1, 100])
async def test_the_count_outlives_the_learner(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Steps before and after a death add up, with checkpoints and with replayed batches."""
    monkeypatch.setattr(Trainer, "_clip", lambda self: float("nan"))
    store = MemoryStore(grown, die_after_commit=2)
    wanted = recipe(9, max_not_finite=3, checkpoint_every=every)
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path, tiny_folder, store, wanted).run()
    store.die_after_commit = -1
    with pytest.raises(InvalidInput, match="the last 3 steps up to step 3"):
        await Rig(tmp_path, tiny_folder, store, wanted).run()
    assert len(store.batches) == 3


def test_a_batch_that_taught_something_ends_the_row() -> None:
    assert [divergence.after(2, metrics) for metrics in (BAD, PARTLY, GOOD)] == [3, 0, 0]


def test_the_log_has_the_number_of_skipped_steps(caplog: pytest.LogCaptureFixture) -> None:
    report = StepReport(
        applied=True, finite=False, skipped=1, measures={"optimizer_steps": 3.0, "ess": 1.0}
    )
    numbers = step_report.numbers(Lesson([], []), Timed(report, 0.1), 7)
    assert (numbers["not_finite"], numbers["applied"]) == (1.0, 1.0)
    assert "step 7: 1 of 4 optimizer steps" in caplog.text
