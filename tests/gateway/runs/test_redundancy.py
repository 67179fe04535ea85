"""Spare trees of a group (RollArt, arXiv 2512.22560): closed form, and the bias of lengths."""

import numpy as np
import pytest
from pydantic import ValidationError

from banyan.errors import InvalidInput
from banyan.recipe import Control
from banyan.recipe_loader.load import load
from services.treestore.lifecycle.redundancy import surplus
from services.treestore.unit_of_work.rows import CLOSED, GROWING, GroupRow, TreeRow
from tests.gateway.runs.test_opening import RECIPES

G, R = 4, 2


def _until_enough(lasts: np.ndarray, take: int, in_order: bool = False) -> tuple[float, list[int]]:
    """Return the time at which a group has enough trees by the store's own rule, and those trees.

    All trees begin at once.
    """
    group = GroupRow("r", "g", "", 0, 1, len(lasts), take=take, take_in_order=int(in_order))
    trees = [
        TreeRow(bytes([i]), "r", "g", i, 1, "", "", (), 1, 1, 1, state=GROWING)
        for i in range(len(lasts))
    ]
    for order, index in enumerate(np.argsort(lasts)):
        trees[index].state, trees[index].closed_ms = CLOSED, order
        needless = {tree.tree_index for tree in surplus(group, trees)}
        if needless or order == len(lasts) - 1:
            return float(lasts[index]), [i for i in range(len(lasts)) if i not in needless]
    raise AssertionError


def _mean(trees: int, take: int, in_order: bool = False, groups: int = 8000) -> tuple[float, float]:
    """Return the mean time of a group, and the mean length of the trees that it took.

    Lengths are times.
    """
    lasts = np.random.default_rng(0).exponential(1.0, (groups, trees))
    times, lengths = [], []
    for row in lasts:
        time, taken = _until_enough(row, take, in_order)
        times.append(time)
        lengths.append(float(row[taken].mean()))
    return float(np.mean(times)), float(np.mean(lengths))


def test_the_closed_form_and_the_bias() -> None:
    barrier, all_lengths = _mean(G, 0)
    first, short = _mean(G + R, G)
    assert barrier == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4, rel=0.03)
    assert barrier == pytest.approx(2.083, rel=0.03)
    assert first == pytest.approx(1 / 6 + 1 / 5 + 1 / 4 + 1 / 3, rel=0.03)
    assert first == pytest.approx(0.950, rel=0.03)
    assert barrier / first == pytest.approx(2.19, rel=0.04)
    assert all_lengths == pytest.approx(1.0, rel=0.03)
    assert short == pytest.approx(2.1 / 4, rel=0.03), "the first four of six are about half as long"


def test_cancelling_without_regard_to_length_is_without_bias_and_without_gain() -> None:
    time, lengths = _mean(G + R, G, in_order=True)
    assert lengths == pytest.approx(1.0, rel=0.03)
    assert time == pytest.approx(2.083, rel=0.03)


def test_recipes_say_what_goes_together() -> None:
    with pytest.raises(ValidationError, match="set redundancy to at least 1"):
        Control(redundancy_debias="cancel_uniform")
    with pytest.raises(ValueError, match="no rule for deterministic"):
        load(RECIPES / "quickstart.yaml", ["deterministic=true", "control.redundancy=1"])
    both = [
        "deterministic=true",
        "control.redundancy=1",
        "control.redundancy_debias=cancel_uniform",
    ]
    assert load(RECIPES / "quickstart.yaml", both).control.redundancy == 1
    with pytest.raises(InvalidInput, match="none is closed before all are grown"):
        load(RECIPES / "ttrl.yaml", ["control.redundancy=1"])
    with pytest.raises(InvalidInput, match="shares leaves among the trees"):
        load(RECIPES / "xrpo.yaml", ["control.redundancy=1"])
