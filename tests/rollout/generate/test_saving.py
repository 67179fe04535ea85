"""Tokens that tree policies save: the closed forms, the bars, and every recipe of a tree policy on the scripted engine."""

from pathlib import Path

import pytest

from banyan.recipe_file import load
from bench.saving import CASES, binary, shaped
from services.rollout.simulate import simulate

RECIPES = Path(__file__).parents[3] / "recipes"


def test_the_cards_figure_of_a_binary_tree():
    assert binary(4) == 34 / 64 == shaped(4) and round(binary(4), 3) == 0.531


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_the_saving_is_what_the_closed_form_and_the_bar_say(case):
    saving = case.saving()
    assert case.holds(saving), f"{saving:.1%}; {case.bar}"
    assert not case.holds(saving + 0.05) or case.closed is None
    assert not case.holds(0.3) or case.least is None


@pytest.mark.parametrize(
    "recipe,leaves", [("eptree", 30), ("tree-grpo", 6), ("rose", 8), ("treepo-eager", 16), ("treepo", 16)]
)
def test_a_recipe_can_be_simulated(recipe, leaves):
    result = simulate(load(RECIPES / f"{recipe}.yaml"))
    assert result["leaves"] == leaves and 0 < result["sampled_tokens"] < result["iid_tokens"]
