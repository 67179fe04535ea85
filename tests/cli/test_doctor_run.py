"""The diagnostic index: each rule fires first on its own series, and not on near ones.

A good run has no finding.
"""

from pathlib import Path

import pytest

from banyan.doctor.rules import RULES, diagnose
from banyan.doctor.series import Measured, Series
from banyan.recipe_loader import load
from tests.cli.made_series import HEALTHY, RISING, STEPS, Curve, flat, made

ARITHMETIC = (Path(__file__).parents[2] / "recipes" / "arithmetic.yaml").read_text()


def names(run: Series) -> list[str]:
    return [finding.rule.name for finding in diagnose(run)]


SICK: dict[str, tuple[str, dict[str, Curve]]] = {
    "not-finite": ("optimise", {"not_finite": lambda t: float(0.6 < t < 0.75)}),
    "mismatch": ("optimise", {"mismatch_kl": flat(0.05)}),
    "nothing-applied": (
        "optimise",
        {"applied": flat(0.0), "zero_variance_share": flat(1.0), "reward": flat(0.5)},
    ),
    "rate": ("optimise", {"relative_rate": flat(0.02), "reward": flat(0.3)}),
    "reward-collapse": ("optimise", {"reward": lambda t: 0.7 if t < 0.6 else 0.2}),
    "gradient-norm": ("optimise", {"grad_norm": lambda t: 0.1 * 100.0**t}),
    "far-from-start": ("optimise", {"start_kl": lambda t: 3.0 * t, "reward": flat(0.3)}),
    "no-spread": ("filter", {"zero_variance_share": flat(0.8)}),
    "too-easy": ("control", {"all_right_share": flat(0.6), "reward": flat(0.95)}),
    "too-hard": ("generate", {"all_wrong_share": flat(0.7)}),
    "entropy-collapse": ("generate", {"entropy": lambda t: 1.0 - 0.95 * t, "reward": flat(0.4)}),
    "off-policy": ("control", {"ess": lambda t: 0.9 - 0.6 * t}),
    "replay-heavy": (
        "replay",
        {"replay_share": lambda t: 0.6 * t, "reward": lambda t: 0.6 - 0.3 * t},
    ),
    "clipped": ("optimise", {"clip_fraction": flat(0.5)}),
    "malformed": ("filter", {"malformed_share": flat(0.4)}),
    "unscored": ("filter", {"unscorable_share": flat(0.5)}),
    "longer-not-better": (
        "control",
        {"completion_tokens": lambda t: 6.0 + 6.0 * t, "reward": flat(0.4)},
    ),
    "length-limited": ("control", {"length_limited_share": flat(0.8)}),
    "long-tail": ("control", {"completion_tokens_p99": flat(60.0)}),
    "duplicates": ("generate", {"completion_tokens": flat(100.0), "duplicate_share": flat(0.4)}),
    "exploration-ends": ("generate", {"entropy": lambda t: 1.0 if t < 0.5 else 0.01}),
    "unanswered": ("generate", {"unanswered_share": flat(0.03)}),
    "calls-malformed": ("generate", {"calls_malformed_share": flat(0.4)}),
    "calls-failed": ("generate", {"calls_failed_share": flat(0.4)}),
    "answers-cut": ("generate", {"answers_cut_share": flat(0.3)}),
    "turns-used-up": ("generate", {"turns_used_up_share": flat(0.4)}),
}


def sure(t: float) -> float:
    """Return entropy that falls to a twentieth, in three quarters of the run."""
    return max(0.05, 1.0 - 1.3 * t)


def learns(t: float) -> float:
    """Return a reward that rises to nearly its maximum, in as long."""
    return min(0.97, 0.2 + 1.1 * t)


# Near each symptom, without it.
WELL: dict[str, dict[str, Curve]] = {
    "not-finite": {"not_finite": lambda t: float(t < 0.2)},  # long ago
    "mismatch": {
        "mismatch_kl": flat(0.05),
        "staleness_mean": flat(1.0),
    },  # of age, not of arithmetic
    "nothing-applied": {"applied": lambda t: float(0.4 < t < 0.5)},  # one step in ten did
    "rate": {
        "relative_rate": flat(0.02)
    },  # and reward rises: a small model that is trained from scratch
    "reward-collapse": {"reward": lambda t: 0.55 - 0.05 * t},  # a little worse
    "gradient-norm": {"grad_norm": lambda t: 0.001 * 500.0**t},  # it grew from next to nothing
    "far-from-start": {"start_kl": lambda t: 3.0 * t},  # and learnt by it
    "no-spread": {"zero_variance_share": flat(0.45)},
    "too-easy": {"all_right_share": flat(0.4)},
    "too-hard": {"all_wrong_share": lambda t: 0.9 - 0.8 * t},  # it was
    "entropy-collapse": {
        "entropy": lambda t: 1.0 - 0.6 * t,
        "reward": flat(0.4),
    },  # not to half, by thirds
    "exploration-ends": {
        "entropy": sure,
        "reward": learns,
    },  # it has learnt its task: nearly all answers are right
    "off-policy": {"ess": flat(0.7), "staleness_mean": flat(2.0)},
    "replay-heavy": {"replay_share": lambda t: 0.6 * t},  # and reward rises
    "clipped": {"clip_fraction": flat(0.2)},
    "malformed": {"malformed_share": lambda t: 0.6 - 0.6 * t},
    "unscored": {"unscorable_share": flat(0.1)},
    "longer-not-better": {"completion_tokens": lambda t: 6.0 + 6.0 * t},  # and better
    "length-limited": {"length_limited_share": lambda t: 0.9 - 0.8 * t},
    "long-tail": {"completion_tokens_p99": flat(20.0)},
    "duplicates": {"duplicate_share": flat(0.9)},  # of short answers: that is agreement
    "unanswered": {"unanswered_share": lambda t: 0.05 * (t < 0.2)},  # long ago
    "calls-malformed": {"calls_malformed_share": lambda t: 0.9 - 0.9 * t},  # it has learnt to call
    "calls-failed": {"calls_failed_share": flat(0.2)},
    "answers-cut": {"answers_cut_share": flat(0.1)},
    "turns-used-up": {"turns_used_up_share": flat(0.2)},
}


@pytest.mark.parametrize(
    "learnt",
    [
        {"all_right_share": lambda t: t, "reward": learns},
        {"completion_tokens": flat(100.0), "duplicate_share": flat(0.9), "reward": learns},
        {
            "completion_tokens": flat(100.0),
            "duplicate_share": flat(0.9),
            "all_right_share": lambda t: 0.7 * min(1.0, 1.5 * t),
        },
    ],
)
def test_what_a_run_has_learnt_is_no_fault(learnt: dict[str, Curve]) -> None:
    """Groups are all right by now, or answers equal, as what is right may have one form."""
    assert names(made(learnt)) == []


def test_a_healthy_run_has_no_findings() -> None:
    assert names(made()) == []


@pytest.mark.parametrize("name", SICK)
def test_a_rule_fires_first_and_names_its_module(name: str) -> None:
    module, changes = SICK[name]
    first = diagnose(made(changes))[0]
    assert (first.rule.name, first.rule.module) == (name, module)
    assert first.evidence and all(e.first >= 1 and e.last <= STEPS for e in first.evidence)


@pytest.mark.parametrize("name", WELL)
def test_a_rule_does_not_fire_on_what_is_near(name: str) -> None:
    assert names(made(WELL[name])) == []


def test_reward_hacking_needs_held_out_answers_that_get_worse() -> None:
    worse = (Measured(0, 0.5, 300), Measured(15, 0.7, 300), Measured(30, 0.4, 300))
    (finding,) = diagnose(made(held_out=worse))
    assert (finding.rule.name, finding.rule.module) == ("reward-hacking", "filter")
    assert [(e.metric, e.first, e.last) for e in finding.evidence] == [
        ("reward", 1, 30),
        ("held_out_reward", 15, 30),
    ]
    assert (finding.evidence[1].was, finding.evidence[1].value) == (0.7, 0.4)
    chance = (Measured(0, 0.5, 20), Measured(30, 0.4, 20))  # two answers of twenty
    assert names(made(held_out=chance)) == []
    assert names(made({"reward": flat(0.5)}, worse)) == ["held-out-falls"]
    assert names(made({"reward": flat(0.5)}, chance)) == []


def test_chance_depends_on_the_scale_of_rewards() -> None:
    """Rewards of ±10: with a deviation of 8, means of 20 answers differ by 5 by chance, 2 · 8 ·
    √(2/20); means of 2,000 do not."""
    fewer = (Measured(0, 4.0, 20), Measured(30, 0.0, 20))
    wide = {"reward": flat(2.0), "reward_std": flat(8.0)}
    assert names(made(wide, fewer)) == []
    assert names(made(wide | {"reward_std": flat(4.0)}, fewer)) == ["held-out-falls"]
    many = (Measured(0, 4.0, 2000), Measured(30, 0.0, 2000))
    assert names(made(wide, many)) == ["held-out-falls"]


def test_huge_gradients_are_named_from_the_first_step_on() -> None:
    assert names(made({"grad_norm": flat(18_670.0)})) == ["gradient-norm"]


def test_a_run_that_was_taught_not_to_answer_is_not_advised_to_think_longer() -> None:
    """The rate is 100 times too high: earlier rewards are gone, and all answers are wrong."""
    wrong: dict[str, Curve] = {
        "reward": lambda t: 0.4 if t < 0.3 else 0.0,
        "all_wrong_share": lambda t: 0.2 if t < 0.3 else 1.0,
        "zero_variance_share": lambda t: 0.3 if t < 0.3 else 1.0,
        "relative_rate": flat(0.022),
        "start_kl": flat(9.0),
        "length_limited_share": flat(1.0),
        "malformed_share": flat(0.9),
        "completion_tokens": lambda t: 5.0 + 3.0 * t,
    }
    result = names(made(wrong))
    assert result[:2] == ["rate", "reward-collapse"] and "far-from-start" in result
    assert not {"too-hard", "no-spread", "longer-not-better", "length-limited", "malformed"} & set(
        result
    )


FALLING = (Measured(0, 0.7, 300), Measured(30, 0.4, 300))


RUINED: dict[str, tuple[dict[str, Curve], tuple[Measured, ...]]] = {
    "rate": (SICK["rate"][1], RISING),
    "reward-collapse": (SICK["reward-collapse"][1], RISING),
    "far-from-start": (SICK["far-from-start"][1], RISING),
    "held-out-falls": ({"reward": flat(0.3)}, FALLING),
}


@pytest.mark.parametrize("name", RUINED)
def test_what_a_ruined_policy_answers_says_nothing_of_prompts_and_lengths(name: str) -> None:
    changes, held_out = RUINED[name]
    symptoms = {
        n: c
        for other in ("too-hard", "malformed", "length-limited")
        for n, c in SICK[other][1].items()
    }
    longer = {"completion_tokens": lambda t: 6.0 + 6.0 * t}
    assert names(made({**symptoms, **longer, **changes}, held_out)) == [name]


@pytest.mark.parametrize(
    "right",
    [
        {"all_right_share": flat(0.6), "reward": flat(0.95)},
        {"all_right_share": flat(0.9), "reward": flat(0.85)},
    ],
)
def test_entropy_may_fall_where_answers_are_right(right: dict[str, Curve]) -> None:
    assert names(made({"entropy": sure, **right})) == ["too-easy"]


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, -3.0])
def test_rewards_that_are_always_equal_are_named_whatever_they_are(value: float) -> None:
    equal: dict[str, Curve] = {
        "reward": flat(value),
        "zero_variance_share": flat(1.0),
        "all_right_share": flat(float(value >= 1.0)),
        "all_wrong_share": flat(float(value <= 0.0)),
        "applied": flat(0.0),
    }
    assert names(made(equal))[0] == "nothing-applied"
    before = {**equal, "applied": lambda t: float(t < 0.1)}
    assert {"no-spread", "too-easy", "too-hard"} & set(names(made(before)))


@pytest.mark.parametrize("fall", [0.05, 0.5, 0.8])
@pytest.mark.parametrize(
    ("reward", "said"),
    [(flat(0.4), "entropy-collapse"), (HEALTHY["reward"], "exploration-ends"), (learns, "")],
)
def test_entropy_that_is_gone_is_named_whatever_reward_does_but_rise_to_the_top(
    fall: float, reward: Curve, said: str
) -> None:
    """It is named early or late, also if half of the groups are all right: the others cannot
    learn."""
    gone: dict[str, Curve] = {"entropy": lambda t: 1.0 if t < fall else 0.01, "reward": reward}
    halves = {"all_right_share": flat(0.48), "all_wrong_share": flat(0.48)}
    assert (
        names(made(gone, steps=60)) == names(made(gone | halves, steps=60)) == [said] * bool(said)
    )


def test_half_of_the_groups_all_right_is_not_a_task_that_is_learnt() -> None:
    halves = {"all_right_share": flat(0.6), "all_wrong_share": flat(0.35), "reward": flat(0.62)}
    assert names(made({"entropy": sure, **halves})) == ["too-easy", "entropy-collapse"]


@pytest.mark.parametrize(
    "entropy",
    [lambda t: 0.15 - 0.1 * t, lambda t: 5.0 if t < 0.5 else 0.3, lambda t: 1.0 - 0.95 * t],
)
def test_little_entropy_or_a_deep_fall_alone_is_not_the_end_of_exploration(entropy: Curve) -> None:
    """Reward rises with entropy low from the start, at a twentieth of much, or at a seventh and
    falling."""
    assert names(made({"entropy": entropy})) == []


def test_the_end_of_exploration_says_what_entropy_was() -> None:
    (finding,) = diagnose(made({"entropy": lambda t: 1.0 if t < 0.5 else 0.01}))
    gone, reward = finding.evidence
    assert (gone.metric, gone.was, gone.value) == (
        "entropy",
        pytest.approx(1.0, rel=0.02),
        pytest.approx(0.01, rel=0.02),
    )
    assert reward.metric == "reward" and "still rises" in finding.rule.symptom


def test_age_alone_is_off_policy() -> None:
    assert names(made({"staleness_mean": flat(6.0)})) == ["off-policy"]


def test_every_rule_has_a_series_that_it_fires_on_and_one_that_it_does_not() -> None:
    by_evaluations = {"reward-hacking", "held-out-falls"}  # above
    assert {rule.name for rule in RULES} == set(SICK) | by_evaluations == set(WELL) | by_evaluations


def test_too_few_steps_say_nothing() -> None:
    sick = {name: curve for _, changes in SICK.values() for name, curve in changes.items()}
    assert names(made(sick, steps=2)) == []
    assert "entropy-collapse" not in names(made(SICK["entropy-collapse"][1], steps=11))


@pytest.mark.parametrize(
    "lever", [lever for rule in RULES for lever in rule.levers], ids=lambda lever: lever.setting
)
def test_each_lever_is_a_key_of_recipes_with_a_value_that_it_takes(lever: object) -> None:
    setting = lever.setting  # type: ignore[attr-defined]
    needed = ["control.max_staleness=1"] if "over_provision" in setting else []
    if setting.startswith("environment."):
        needed = ["environment.name=python"]
    if setting.startswith("replay."):
        needed = ["optimise.loss=decoupled", "replay={fraction: 0.3}"]
    load.parse(ARITHMETIC, [*needed, setting])


def test_modules_are_those_of_the_taxonomy() -> None:
    assert {rule.module for rule in RULES} <= {
        "generate",
        "filter",
        "control",
        "replay",
        "optimise",
    }
