"""XRPO's allocation (arXiv 2510.06672): numbers, quantiles, rounds of a block, and a simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.credit.student_t import quantile, within
from banyan.plugins import Waiting
from methods.control.xrpo import Xrpo, deviation, half_width, reduction
from services.gateway.allocation.growth_budgets import Grant, GrowthBudgets, TreeBudget

HALF = (1, 1, 0, 0)
QUARTER = (1, 0, 0, 0)
EIGHT = (1, 0) * 4
ZERO = (0, 0, 0, 0)


@pytest.mark.parametrize(  # of the usual tables, two-sided
    ("freedom", "ten", "five", "one"),
    [
        (1, 6.314, 12.706, 63.657),
        (2, 2.920, 4.303, 9.925),
        (3, 2.353, 3.182, 5.841),
        (4, 2.132, 2.776, 4.604),
        (7, 1.895, 2.365, 3.499),
        (10, 1.812, 2.228, 3.169),
        (30, 1.697, 2.042, 2.750),
        (120, 1.658, 1.980, 2.617),
        (10**6, 1.645, 1.960, 2.576),
    ],
)
def test_quantiles_are_those_of_the_tables(
    freedom: int, ten: float, five: float, one: float
) -> None:
    result = [quantile(alpha, freedom) for alpha in (0.1, 0.05, 0.01)]
    assert result == pytest.approx([ten, five, one], abs=6e-4)


@given(st.integers(1, 200), st.floats(0.001, 0.999))
def test_a_quantile_is_where_the_distribution_has_its_value(freedom: int, alpha: float) -> None:
    assert within(quantile(alpha, freedom), freedom) == pytest.approx(1 - alpha, abs=1e-9)


def test_the_numbers_of_the_paper() -> None:
    s = deviation(HALF)
    assert s == pytest.approx(0.5774, abs=5e-5) and deviation(QUARTER) == pytest.approx(0.5)
    assert s * half_width(0.05, 4) == pytest.approx(0.9187, abs=1e-4)
    assert s * half_width(0.05, 5) == pytest.approx(0.7169, abs=1e-4)
    result = [
        deviation(rewards) * reduction(0.05, len(rewards))
        for rewards in (HALF, QUARTER, EIGHT, ZERO)
    ]
    assert result == pytest.approx([0.2018, 0.1748, 0.0360, 0.0], abs=1e-4)


def waiting(*rewards: tuple[float, ...]) -> list[Waiting]:
    return [Waiting(len(r), tuple(map(float, r))) for r in rewards]


def test_without_a_bonus_the_order_is_that_of_the_paper() -> None:
    share, trees = Xrpo(bonus=0.0), waiting(ZERO, EIGHT, QUARTER, HALF)
    order, left = [], list(range(4))
    while left:
        (first,) = [
            i
            for i, n in zip(left, share.share([trees[i] for i in left], 1, 64, 20), strict=True)
            if n
        ]
        order.append(first)
        left.remove(first)
    assert order == [3, 2, 1, 0]


def test_only_the_bonus_speaks_for_prompts_without_a_spread() -> None:
    trees = waiting(ZERO, HALF)
    assert Xrpo(bonus=0.0).share(trees, 6, 64, 8) == [0, 6]
    alone = Xrpo(bonus=0.1).share(waiting(ZERO, (1,) * 8), 3, 64, 12)
    assert alone == [3, 0], "all failed and all passed: the one with fewer rollouts is explored"
    zero, half = Xrpo(bonus=5.0).share(trees, 6, 64, 8)
    assert zero == half == 3, "a great bonus is uniform"
    given_ = 8
    first = Xrpo(bonus=1.0).share(trees, 1, 64, given_)
    assert first == [0, 1] and reduction(0.05, 4) * deviation(HALF) + math.sqrt(
        math.log(9) / 4
    ) > math.sqrt(math.log(9) / 4)


def test_leaves_that_could_not_be_scored_take_no_part() -> None:
    assert Xrpo(bonus=0.0).share([Waiting(4, (1.0,)), *waiting(QUARTER)], 2, 64, 8) == [0, 2]
    assert Xrpo().share([Waiting(4, ()), Waiting(4, ())], 4, 64, 8) == [2, 2]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=8), min_size=1, max_size=8),
    st.integers(0, 60),
    st.integers(8, 16),
)
def test_the_budget_is_spent_whole_unless_the_cap_binds(rewards, budget: int, most: int) -> None:
    trees = [Waiting(len(r), tuple(r)) for r in rewards]
    more = Xrpo().share(trees, budget, most, 10)
    place = sum(most - tree.leaves for tree in trees)
    assert sum(more) == min(budget, place) and min(more) >= 0
    assert all(tree.leaves + n <= most for tree, n in zip(trees, more, strict=True))


@pytest.mark.parametrize(
    "wrong", [{"rollouts": 1}, {"phases": 1}, {"alpha": 1.0}, {"bonus": -0.1}, {"bonus": math.nan}]
)
def test_bad_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError):
        Xrpo(**wrong)


# -- rounds of a block --


def tree(ordinal: int, rewards=(), granted: int | None = None, **more) -> TreeBudget:
    fields = {
        "ended": len(rewards),
        "growing": True,
        "granted": len(rewards) if granted is None else granted,
        **more,
    }
    return TreeBudget(bytes([ordinal]), ordinal, rewards=tuple(rewards), **fields)


def rooms(
    rollouts: int = 8, phases: int = 3, block: int = 2, most: int = 32, **more
) -> GrowthBudgets:
    return GrowthBudgets(Xrpo(rollouts=rollouts, phases=phases, bonus=0.0), block, most, **more)


def test_a_round_waits_for_all_of_its_block_and_for_no_other() -> None:
    waits, grows, other = tree(0, HALF), tree(1, (1, 0), 4), tree(2, HALF)
    result = rooms().grants([waits, grows, other])
    assert list(result) == [1], (
        "block 0 waits for its second tree; block 1 has one tree so far, which waits"
    )
    scoring = tree(1, (1, 0), 4, ended=4)
    assert rooms().grants([waits, scoring]) == {}, "not all leaves are scored"
    done = rooms().grants([waits, tree(1, ZERO)])
    assert done == {0: [Grant(b"\0", 8, False, 1), Grant(b"\1", 4, False, 1)]}, (
        "half of the pot of 8"
    )


def test_the_last_round_spends_the_pot_and_is_final() -> None:
    result = rooms().grants([tree(0, (*HALF, 1, 0, 1, 0), round=1), tree(1, ZERO, round=1)])
    assert result == {0: [Grant(b"\0", 12, True, 2), Grant(b"\1", 4, True, 2)]}
    capped = rooms(most=9).grants([tree(0, (*HALF, 1, 0, 1, 0), round=1), tree(1, ZERO, round=1)])
    assert capped == {0: [Grant(b"\0", 9, True, 2), Grant(b"\1", 7, True, 2)]}, (
        "what the cap leaves goes to the other"
    )


def test_patience_ends_a_wait_for_slow_trees_with_what_the_others_brought() -> None:
    slow = tree(1, (), 4)
    assert rooms(patience_s=5.0).grants([tree(0, HALF, waited_s=4.9), slow]) == {}
    assert rooms(patience_s=5.0).grants([tree(0, HALF, waited_s=5.0), slow]) == {
        0: [Grant(b"\0", 6, False, 1)]
    }
    unscored = tree(0, (1, 0), 4, ended=4, waited_s=5.0)
    assert rooms(patience_s=5.0).grants([unscored]) == {0: [Grant(b"\0", 6, False, 1)]}
    later = rooms().grants([tree(0, (*HALF, 1, 0), round=1, final=True), tree(1, HALF)])
    assert later == {0: [Grant(b"\1", 7, False, 1)]}, (
        "2 of the pot of the first were left over, and 4 are the second's own"
    )


def test_what_a_dropped_tree_did_not_use_is_the_others() -> None:
    result = rooms(phases=2).grants([tree(0, (), 4, growing=False), tree(1, HALF)])
    assert result == {0: [Grant(b"\1", 12, True, 1)]}


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(1, 4), st.integers(2, 5))
def test_however_it_goes_the_budget_is_never_exceeded_and_no_tree_waits_for_ever(
    data, start, block, phases
) -> None:
    """Trees come, wait, are slow, lose scores and are dropped in any order; grants are repeated."""
    rule = rooms(8, phases, block, 16, patience_s=5.0)
    trees = {n: tree(n, (), start) for n in range(data.draw(st.integers(1, 2 * block)))}
    for _ in range(200):
        for n, item in list(trees.items()):
            fate = (
                data.draw(st.sampled_from(["grow", "grow", "grow", "slow", "drop"]))
                if item.open
                else "over"
            )
            if fate == "grow":
                rewards = [float((n + k) % 3 == 0) if k % 5 else None for k in range(item.granted)]
                trees[n] = tree(
                    n, rewards, item.granted, round=item.round, waited_s=item.waited_s + 3
                )
            elif fate == "drop" and data.draw(st.integers(0, 9)) == 0:
                trees[n] = tree(n, (), item.granted, round=item.round, growing=False)
        result, repeated = rule.grants(list(trees.values())), rule.grants(list(trees.values()))
        assert result == repeated
        for grant in (g for grants in result.values() for g in grants):
            item = trees[grant.tree_id[0]]
            assert grant.round == item.round + 1 and item.granted <= grant.leaves <= 16
            trees[item.ordinal] = tree(
                item.ordinal,
                item.rewards,
                grant.leaves,
                ended=item.ended,
                round=grant.round,
                final=grant.final,
            )
        for b in {n // block for n in trees}:
            members = [t for n, t in trees.items() if n // block == b]
            assert sum(t.granted for t in members) <= 8 * len(members)
        if not any(t.open for t in trees.values()):
            break
    else:
        raise AssertionError(f"some tree waits for ever: {trees}")
    for b in {n // block for n in trees}:
        members = [t for n, t in trees.items() if n // block == b]
        if all(t.growing for t in members) and len({t.round for t in members}) == 1:
            assert sum(t.granted for t in members) == min(8, 16) * len(members), (
                "all of it is spent"
            )


@pytest.mark.parametrize(("bonus", "most"), [(0.02, 0.96), (0.03, 0.94)])
def test_squared_error_is_below_that_of_uniform_allocation_and_prompts_near_a_half_get_more(
    bonus: float, most: float
) -> None:
    rng = np.random.default_rng(0)
    p_Q = np.array([0.02, 0.02, 0.05, 0.05, 0.95, 0.98, 0.5, 0.5, 0.4, 0.6] * 3)
    rule = GrowthBudgets(Xrpo(rollouts=16, phases=3, bonus=bonus), len(p_Q), 64)
    errors_X = 0.0
    errors_U = 0.0
    given_Q = np.zeros(len(p_Q))
    repeats = 200
    for _ in range(repeats):
        trees = [tree(q, rng.random(4) < p) for q, p in enumerate(p_Q)]
        while any(t.open for t in trees):
            (grants,) = rule.grants(trees).values()
            for q, g in enumerate(grants):
                drawn = (*trees[q].rewards, *(rng.random(g.leaves - trees[q].granted) < p_Q[q]))
                trees[q] = tree(q, drawn, round=g.round, final=g.final)
        counts = np.array([t.granted for t in trees])
        assert counts.sum() == 16 * len(p_Q)
        given_Q += counts
        errors_X += sum((np.mean(t.rewards) - p) ** 2 for t, p in zip(trees, p_Q, strict=True))
        errors_U += sum((rng.binomial(16, p) / 16 - p) ** 2 for p in p_Q)
    near = np.abs(p_Q - 0.5) <= 0.1
    assert errors_X < most * errors_U
    assert given_Q[near].mean() > 1.4 * given_Q[~near].mean()
