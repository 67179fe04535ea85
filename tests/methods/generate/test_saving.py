"""Savings by tree policies: the closed forms and the bars."""

import pytest

from bench.saving import CASES, binary, shaped
from tests.rollout.growing import ENDLESS, engine, grow, spec


def test_the_published_figure_of_a_binary_tree():
    assert binary(4) == 34 / 64 == shaped(4) and round(binary(4), 3) == 0.531


def test_the_cache_gives_what_the_closed_form_says_is_shared():
    """Of 16 independent paths of 32 tokens, later branches read 53.1 % from the cache."""
    actual, item = spec("treepo", {"segment": 8, "max_depth": 4, "width": 16}, 32), engine(ENDLESS)
    grower, _ = grow(actual, item)
    tree, prompt = grower.tree, len(grower.tree.root)
    reused = sum(s.cached_tokens - prompt for s in tree if s.parent and s.ordinal)
    assert reused / (16 * 32) == binary(4) == 1 - item.stats().sampled_tokens / (16 * 32)
    asked = sum(len(tree.prefix_tokens(s.parent, s.fork)) for s in tree if s.parent)
    assert (
        item.stats().cached_tokens == asked - prompt and item.stats().prefilled_tokens == prompt
    ), "a prompt is read once"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_the_saving_is_what_the_closed_form_and_the_bar_say(case):
    saving = case.saving()
    assert case.holds(saving), f"{saving:.1%}; {case.bar}"
    assert not case.holds(saving + 0.05) or case.closed is None
    assert not case.holds(0.3) or case.least is None
