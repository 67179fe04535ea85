"""The states of a tree on its node, and the number of trees that fit."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.plugins.traits import PolicyTraits
from services.chassis.process.telemetry import Span
from services.rollout.node.active_trees import ActiveTree, ActiveTrees, TreeState

PENDING, GROWING, AWAITING, FINISHING = TreeState
ALLOWED = {
    (PENDING, GROWING),
    (PENDING, FINISHING),
    (GROWING, AWAITING),
    (GROWING, FINISHING),
    (AWAITING, GROWING),
    (AWAITING, FINISHING),
}
IDLE: dict[str, Any] = {"lacks_budget": False, "in_flight": (), "acting": ()}
PATHS = {
    PENDING: [],
    GROWING: [GROWING],
    AWAITING: [GROWING, AWAITING],
    FINISHING: [GROWING, FINISHING],
}


def tree(state: TreeState = PENDING, number: int = 0, width: int = 1, **grower: Any) -> ActiveTree:
    spec: Any = SimpleNamespace(tree_id=bytes([number]) * 32, traits=PolicyTraits(width=width))
    delivery: Any = None
    active = ActiveTree(
        spec=spec,
        grower=SimpleNamespace(**{**IDLE, **grower}),  # type: ignore[arg-type]
        epoch=1,
        delivery=delivery,
        span=Span(),
    )
    for step in PATHS[state]:
        active.enter(step)
    return active


@pytest.mark.parametrize(("before", "after"), list(product(TreeState, TreeState)))
def test_a_tree_changes_its_state_only_as_allowed(before: TreeState, after: TreeState) -> None:
    active = tree(before)
    if (before, after) in ALLOWED:
        active.enter(after)
        assert active.state is after
    else:
        with pytest.raises(RuntimeError, match=f"is {before.value}: it cannot become"):
            active.enter(after)
        assert active.state is before


def test_trees_are_listed_by_their_state() -> None:
    trees = ActiveTrees(max_branches=8, most_trees=8)
    for number, state in enumerate(TreeState):
        trees.put(tree(state, number))
    pending, growing, awaiting, _ = trees
    assert trees.pending == [pending] and trees.growing == [growing, awaiting]
    assert trees.unfinished == [pending, growing, awaiting]


def test_a_new_claim_replaces_the_one_before() -> None:
    trees = ActiveTrees(max_branches=8, most_trees=8)
    first, second = tree(), tree()
    assert trees.put(first) is None and trees.put(second) is first
    assert trees.holds(second) and not trees.holds(first)
    assert not trees.remove(first) and trees.remove(second) and len(trees) == 0


@pytest.mark.parametrize(
    ("present", "free"),
    [
        ([], 12),  # 12 branches for trees of one
        ([tree(GROWING, width=4)], 2),  # 8 branches for trees of four
        ([tree(PENDING, width=4), tree(GROWING, 1, width=4)], 1),
        ([tree(FINISHING, width=4)], 3),
        ([tree(AWAITING, width=4, lacks_budget=True)], 3),
        ([tree(PENDING, width=4, lacks_budget=True)], 2),  # it has not begun
        ([tree(GROWING, width=4, acting="ab")], 3),  # all that it has begun waits for answers
        ([tree(GROWING, n, width=4, acting="ab", in_flight="cd") for n in range(2)], 2),
        ([tree(GROWING, width=4, in_flight="cd")], 2),
        ([tree(GROWING, n, width=8, acting="a") for n in range(7)], 1),
        ([tree(GROWING, n, width=8, acting="a") for n in range(8)], 0),  # as many as it may hold
        ([tree(PENDING, number) for number in range(10)], 0),  # the most that it may hold
    ],
)
def test_finishing_trees_and_those_without_a_budget_leave_their_place(
    present: list[ActiveTree], free: int
) -> None:
    trees = ActiveTrees(max_branches=8, most_trees=12 if not present else 10)
    for each in present:
        trees.put(each)
    assert trees.free == free


def test_a_tree_that_comes_or_goes_wakes_who_waits_for_that() -> None:
    trees, active, ends = ActiveTrees(max_branches=8, most_trees=8), tree(), []
    active.span = SimpleNamespace(end=lambda: ends.append(active))  # type: ignore[assignment]
    trees.put(active)
    assert trees.changed.is_set() and trees.start_due.is_set() and not ends
    trees.changed.clear()
    assert trees.remove(active) and trees.changed.is_set() and ends == [active]
