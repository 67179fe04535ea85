"""Losses by name in a recipe, and the settings that they refuse."""

from typing import Any, get_args

import pytest

from banyan.errors import InvalidInput
from banyan.recipe import Optimise
from services.learner import losses


def test_a_recipe_may_name_every_loss() -> None:
    assert set(get_args(Optimise.model_fields["loss"].annotation)) == set(losses.NAMES)
    assert all(losses.build(name, {}) for name in losses.NAMES)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ppo-clip", {"clip": 0.2}, "no setting 'clip'"),
        ("reinforce", {"mode": "mean"}, "mode 'mean'"),
        ("ppo-clip", {"mode": "seq-mean-token-sum-norm"}, "needs `length`"),
        (
            "ppo-clip",
            {"mode": "seq-mean-token-sum-norm", "length": 9, "count_silent": True},
            "leave count_silent out",
        ),
        ("ppo-clip", {"count_silent": 1}, "count_silent must be true or false, got 1"),
        ("ppo-clip", {"dual_clip": 1.1}, "dual_clip"),
        ("ppo-clip", {"delta": 1.1}, "delta 1.1 must be above"),
        ("ppo-clip", {"clip_low": "wide"}, "clip_low must be a finite number, got 'wide'"),
        (
            "ppo-clip",
            {"importance": {"level": "tree"}},
            "level 'tree' must be one of token, sequence",
        ),
        (
            "ppo-clip",
            {"importance": {"normalise": 1}},
            "importance.normalise must be true or false, got 1",
        ),
        ("ppo-clip", {"importance": 2.0}, "importance 2.0 must be a mapping"),
        ("ppo-clip", {"importance": {}, "old": "behaviour"}, "corrects for sampling already"),
        ("reinforce", {"old": "proximal"}, "no ratio"),
        ("ppo-clip", {"reject": {"by": "k4"}}, "by 'k4'"),
        (
            "ppo-clip",
            {"reject": {"low": 3.0}},
            "reject.low 3.0 and reject.high 2.0 must be ordered",
        ),
        (
            "ppo-clip",
            {"reject": {"high": 0.4}},
            "reject.low 0.5 and reject.high 0.4 must be ordered",
        ),
        (
            "ppo-clip",
            {"reject": {"by": "k3", "low": 0.5}},
            "reject.low 0.5 is a bound of the ratio, by k1; k3 is never below 0",
        ),
        ("ppo-clip", {"reject": {"by": "k2", "high": 0.0}}, "reject.high 0.0 must be above 0"),
        (
            "ppo-clip",
            {"reject": {"by": "k3", "high": "low"}},
            "reject.high must be a finite number, got 'low'",
        ),
        (
            "ppo-clip",
            {"reject": {"low": float("nan")}},
            "reject.low must be a finite number, got nan",
        ),
        (
            "ppo-clip",
            {"reject": {"over": "path"}},
            "reject.over 'path' must be one of token, worst, sum, mean",
        ),
        ("ppo-clip", {"kl": {"coef": 0.0}}, "leave kl out"),
        ("ppo-clip", {"kl": {"beta": 0.1}}, "kl has no setting 'beta'"),
        ("ppo-clip", {"forced": {"prompt": "policy"}}, "forced prompt"),
        ("ppo-clip", {"forced": ["branch"]}, "must map origins"),
        ("ppo-clip", {"forced": {1: "policy"}}, "must map origins to policy or shaped"),
        ("ppo-clip", {"forced": {"teacher": ["policy"]}}, "must map origins to policy or shaped"),
        ("ppo-clip", {"entropy": "x"}, "entropy must be a finite number, got 'x'"),
        ("ppo-clip", {"entropy": [1]}, r"entropy must be a finite number, got \[1\]"),
        ("ppo-clip", {"entropy": float("nan")}, "entropy must be a finite number, got nan"),
        ("ppo-clip", {"shaping": float("inf")}, "shaping must be a finite number, got inf"),
        ("ppo-clip", {"shaping": True}, "shaping must be a finite number, got True"),
        ("ppo-clip", {"old": ["sampled"]}, r"old must be a name, got \['sampled'\]"),
        ("ppo-clip", {"clip_high": float("inf")}, "clip_high must be a finite number, got inf"),
        ("cispo", {"clip_high": float("nan")}, "clip_high must be a finite number, got nan"),
        ("ppo-clip", {"clip_high": 10**400}, "must be a finite number"),
        ("ppo-clip", {"kl": {"coef": float("nan")}}, "kl.coef must be a finite number, got nan"),
        (
            "ppo-clip",
            {"importance": {"cap": float("inf")}},
            "importance.cap must be a finite number, got inf",
        ),
        ("dpo", {"beta": float("nan")}, "beta must be a finite number, got nan"),
        ("gspo", {"mode": "token-mean"}, "seq-mean-token-mean, always"),
        ("gspo", {"count": "nodes"}, "counts a token once"),
        ("gspo", {"over": "sum"}, "mean or product"),
        ("echo-clip", {"tail": 0}, "tail 0"),
        ("echo-clip", {"tail": 2.5}, "tail must be a whole number, got 2.5"),
        ("dpo", {"mode": "token-mean"}, "no setting 'mode'"),
        ("dpo", {"pairs": "some"}, "pairs 'some'"),
    ],
)
def test_bad_settings_are_refused_by_name(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        losses.build(name, settings)
