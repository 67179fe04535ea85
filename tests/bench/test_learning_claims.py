"""Claims about learning: what their rows say of cells, and what their arms differ in."""

from types import SimpleNamespace
from typing import Any

import pytest

from banyan.errors import NotReady
from banyan.recipe import Recipe
from banyan.recipe_loader.votes import growth
from bench.claims.claim import NOT_SHOWN, SHOWN, UNMEASURED, Finding
from bench.claims.learning import (
    arrol,
    dars_b,
    dots_replay,
    echo,
    ets_vote,
    expert,
    latr,
    mc_grpo,
    otr,
)
from bench.claims.learning.chains import TASK, Arm, learnt, nearest
from bench.trees.earlier import Replays, Rows
from bench.trees.process import Counts
from bench.trees.scoring import Scorers
from services.gateway.tasks.dataset import Examples

Cell = dict[str, Any]


def _echo(after: float, plain: float) -> Cell:
    course = {"before": 0.5, "updates": 10, "acts": {"forks": 320.0, "clip_fraction": 0.1}}
    return {"echo": {**course, "after": after}, "ttrl": {**course, "after": plain}}


def test_echo_is_compared_after_as_many_tokens_with_its_forks_and_clips() -> None:
    found = echo.tell([_echo(0.60, 0.50), _echo(0.61, 0.50), _echo(0.62, 0.51)])
    assert found.verdict == SHOWN and found.ours.startswith("+10.7 points: 61.0 % against 50.3 %")
    assert "32 forks an update, 1.0 % of tokens clipped" in found.ours
    assert echo.tell([_echo(0.60, 0.50), _echo(0.50, 0.60)]).verdict == NOT_SHOWN


def _arrol(after: float, plain: float, head: float) -> Cell:
    votes = {"plain": plain, "head": head, "leaf": 0.25}
    ours = {"after": after, "sampled": 110_400, "acts": {"ends_discarded": 1536.0}, **votes}
    return {"arrol": ours, "iid": {"after": 0.5, "sampled": 110_600}}


def test_arrol_is_compared_after_as_many_tokens_and_its_votes_on_the_same_rows() -> None:
    cells = [_arrol(0.52, 0.4, 0.5), _arrol(0.53, 0.5, 0.6), _arrol(0.54, 0.6, 0.7)]
    found = arrol.tell(cells)
    assert found.verdict == SHOWN and found.ours.startswith("+3.0 points of held-out accuracy")
    assert "53.0 % after 110,400 sampled tokens against 50.0 % after 110,600" in found.ours
    assert "128 of 256 rollouts stopped an update" in found.ours
    votes = arrol.tell_votes(cells)
    assert votes.verdict == SHOWN and votes.ours.startswith("+10.0 points: 60.0 % by the head's")
    assert votes.interval == "+10.0 to +10.0 points"  # pairs: policies differ, and are no error
    few = [_arrol(0.5, 0.4, 0.45), _arrol(0.5, 0.5, 0.56)]
    assert arrol.tell_votes(few).verdict == NOT_SHOWN
    assert arrol.tell_votes([_arrol(0.5, 0.4, float("nan"))]).verdict == UNMEASURED


def test_ets_keeps_an_accuracy_that_it_loses_less_than_a_point_of() -> None:
    def cell(ets: float, rebase: float) -> Cell:
        return {"ets": {"head": ets, "plain": 0.3}, "rebase": {"head": rebase, "plain": 0.4}}

    found = ets_vote.tell([cell(0.495, 0.5), cell(0.595, 0.6)])
    assert found.verdict == SHOWN and found.ours.startswith("-0.5 points: 54.5 % against 55.0 %")
    assert "(majorities of the same leaves: 30.0 % and 40.0 %)" in found.ours
    assert ets_vote.tell([cell(0.485, 0.5), cell(0.585, 0.6)]).verdict == NOT_SHOWN
    assert ets_vote.tell([cell(float("nan"), 0.5)]).verdict == UNMEASURED


def _dars(large: tuple[float, float], small: tuple[float, float]) -> Cell:
    course = {"leaves": 150, "first_stage": 100}
    return {
        name: {**course, "passes": {"before": (0.1, 0.4), "after": after}}
        for name, after in (("dars-b", large), ("dars", small))
    }


def test_dars_b_must_gain_in_both_measures() -> None:
    both = [_dars((0.70, 0.95), (0.60, 0.90)), _dars((0.71, 0.96), (0.61, 0.90))] * 2
    found = dars_b.tell(both)
    assert found.verdict == SHOWN and "hard prompts add 50 % to the samples" in found.ours
    assert "Pass@1 +10.0 points (70.5 % against 60.5 %, from 10.0 %)" in found.ours
    one = [_dars((0.70, 0.90), (0.60, 0.90)), _dars((0.71, 0.90), (0.61, 0.91))] * 2
    assert dars_b.tell(one).verdict == NOT_SHOWN


def _course(seconds: float, tokens: int, **acts: list[float]) -> Cell:
    spent = {"processor_s": seconds, "sampled": tokens}
    points = [{"accuracy": accuracy, **spent} for accuracy in (0.95, 0.95)]
    return {"points": points, "acts": acts}


def _dots(seconds: float) -> Cell:
    return {
        "dots": _course(seconds, 50_000, replay_share=[0.0, 0.8], zero_variance_share=[0.1]),
        "uniform": _course(10.0, 100_000, replay_share=[0.0], zero_variance_share=[0.3]),
    }


def test_dots_is_compared_in_time_to_an_accuracy() -> None:
    found = dots_replay.tell([_dots(6.0), _dots(6.1), _dots(6.2)])
    assert found.verdict == SHOWN
    assert found.ours.startswith("-39 % processor time, -50 % sampled tokens; 40 % of trained")
    assert "10 % of groups teach nothing, 30 % of evenly chosen ones" in found.ours
    low, high = (int(part.split()[0]) for part in found.interval.split(" to "))
    assert low < -39 < high < -30
    assert dots_replay.tell([_dots(9.0), _dots(9.1)]).verdict == NOT_SHOWN, "10 % are not 23 %"


def _otr(right: list[float], plain: list[float]) -> Cell:
    first = {"right": [1.0, 0.0, 0.0, 0.0], "far": 0.0}
    return {
        "before": first,
        "otr": {"right": right, "far": 0.5},
        "sft": {"right": plain, "far": 0.25},
    }


def test_otr_says_what_is_learnt_unlearnt_and_carried_over() -> None:
    found = otr.tell([_otr([1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0])] * 2)
    assert found.verdict == SHOWN and found.ours.startswith("+25.0 points of held-out accuracy")
    assert "`otr` 75.0 %, 50.0 % of chains of 16, and keeps 100 % of what was right" in found.ours
    assert "`sft` 50.0 %, 25.0 % of chains of 16, and keeps 0 % of what was right" in found.ours
    worse: Finding = otr.tell([_otr([0.0] * 4, [1.0] * 4)] * 2)
    assert worse.verdict == NOT_SHOWN


def test_arms_differ_in_their_method_alone() -> None:
    for arms in (echo.arms(), dots_replay.arms(), dars_b.arms(), otr.arms()):
        ours, theirs = (arm.recipe(0) for arm in arms.values())
        for part in ("model", "task", "eval", "resources", "seed"):
            assert getattr(ours, part) == getattr(theirs, part)
    ours, theirs = (arm.recipe(0) for arm in echo.arms().values())
    assert ours.filter == theirs.filter and ours.optimise.epochs == theirs.optimise.epochs == 2
    ours, theirs = (arm.recipe(0) for arm in dots_replay.arms().values())
    assert ours.replay is not None and theirs.replay is None
    grown, all_of = ours.control.groups_per_batch, theirs.control.groups_per_batch
    assert grown == (1 - ours.replay.fraction) * all_of


def test_whole_updates_end_nearest_to_the_tokens() -> None:
    enough = nearest(100)
    assert not enough(0, Counts()) and not enough(2, Counts(sampled=60))
    assert enough(3, Counts(sampled=90)) and enough(1, Counts(sampled=80))


def test_rows_of_an_expert_are_right_chains_of_the_training_rows() -> None:
    recipe = Arm(width=1).recipe(3)
    rows = expert.rows(recipe, 8)
    assert len({row["question"] for row in rows}) == 8 and rows[4:] == expert.rows(recipe, 4, 4)
    assert all(Scorers(recipe).of_training.score(row["answer"], row).value == 1.0 for row in rows)
    assert rows != expert.rows(Arm(width=1).recipe(4), 8)


def _refused(**changes: Any) -> Recipe:
    return Arm(width=2, changes=changes).recipe(0)


def test_what_only_the_store_knows_is_refused() -> None:
    rescue = _refused(replay={"rescue": True}, optimise={"loss": "decoupled"})
    with pytest.raises(NotReady, match="rescue"):
        Replays(rescue)
    with pytest.raises(NotReady, match="exact, number"):
        Scorers(_refused(filter=[{"name": "exact"}, {"name": "number"}]))
    answers = _refused(control={"curriculum": "seeds"})
    with pytest.raises(NotReady, match="answers in front"):
        Rows(answers, Examples(answers.task, [], [], b""))


def test_mc_grpo_is_within_a_point_only_if_all_of_the_interval_is() -> None:
    def cell(few: float, many: float) -> Cell:
        return {"few": {"before": 0.1, "after": few}, "many": {"before": 0.1, "after": many}}

    found = mc_grpo.tell([cell(0.600, 0.600), cell(0.602, 0.601), cell(0.601, 0.602)])
    assert found.verdict == SHOWN and found.ours.endswith("60.1 % against 60.1 %, from 10.0 %")
    assert mc_grpo.tell([cell(0.50, 0.60), cell(0.60, 0.50)]).verdict == NOT_SHOWN


def test_latr_is_compared_in_updates_and_a_run_that_is_not_there_makes_a_bound() -> None:
    def cell(latr: int, last: float = 0.95) -> Cell:
        def points(updates: int, end: float) -> Cell:
            return {"points": [{"accuracy": a, "updates": updates} for a in (0.95, end)]}

        return {"latr": points(latr, last), "grpo": points(20, 0.95)}

    found = latr.tell([cell(10), cell(10), cell(10)])
    assert (found.verdict, found.ours) == (SHOWN, "200 % of GRPO's speed in updates")
    cut = latr.tell([cell(10), cell(10, 0.5), cell(10)])
    assert cut.ours == "200 % of GRPO's speed in updates (some runs did not get there: a bound)"
    assert latr.tell([cell(40), cell(41)]).verdict == NOT_SHOWN


def test_what_a_method_did_is_summed_over_its_updates() -> None:
    def step(number: int) -> Counts:
        of_step = {"forks": 2.0 + number}
        process.update = SimpleNamespace(metrics=lambda: of_step)
        return Counts(sampled=10, leaves=4)

    process: Any = SimpleNamespace(step=step)
    acts = ("forks", "clip_fraction")
    found = learnt(process, lambda updates, _: updates >= 3, acts, lambda _: 0.5)
    assert found["acts"] == {"forks": 2.0 + 3.0 + 4.0, "clip_fraction": 0.0}
    assert (found["updates"], found["sampled"], found["leaves"]) == (3, 30, 12)


def test_arrol_samples_as_much_as_its_rival_and_stops_no_answer_that_votes() -> None:
    recipe, settings = arrol.arm().recipe(0), arrol.SETTINGS
    of_a_stopped_one = settings["detect"] / TASK.tokens
    whole = settings["keep"] + (1 - settings["keep"]) * of_a_stopped_one
    assert settings["width"] * whole == arrol.RIVAL_WIDTH
    assert recipe.eval.votes is not None
    policy, of_votes = growth(recipe, recipe.eval.votes)
    assert (policy, of_votes) == ("arrol", {**settings, "keep": 1.0})
