"""Properties of every estimator on every tree: irrelevant changes alter no advantage."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.credit.group_arrays import group_arrays
from banyan.plugins import Advantages, GroupTrees
from banyan.view import TreeView
from methods.advantages.portool import PorTool
from tests.methods.advantages.planting import (
    Twig,
    bare,
    cut,
    flat,
    forests,
    group,
    leaf,
    planted,
    words,
)

NAMES = sorted(registry.names("optimise"))
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("treepo", {"weighting": "group_size", "require_spread": True}),
    ("tree-grpo", {"peers": "nested"}),
    ("treerl", {"discount": "sqrt"}),
    ("rose", {"length_penalty": 1.0}),
    ("portool", {"join": "max"}),
    ("mars2", {"parent": "raw"}),
    ("gigpo", {"scale": "mean_std", "rows": "episodes"}),
    ("hgpo", {"scale": "mean", "episode_term": True}),
    ("branch-depth", {"fusion": "likely", "peers": "group"}),
    ("mc-grpo", {"floor": 0.0}),
    ("dapo", {"longest": 6, "buffer": 3}),
]
each = pytest.mark.parametrize(
    ("name", "changes"), VARIANTS, ids=lambda v: v if isinstance(v, str) else "-".join(v)
)
lightly = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
NOBODY = {"reinforce++", "otr"}  # estimators that compare nothing within a group
REWARDED = {"mars2", "sage-skill", "gigpo", "hgpo"}  # users of rewards of places inside a path


FORMS = {
    "mars2": "mars2",
    "sage-skill": "sage-skill",
}  # the facts that an estimator needs of a tree
Written = Callable[[list[list[Twig]]], list[list[Twig]]]


def each_of(
    trees: list[list[Twig]], write: Written
) -> Iterator[tuple[str, dict[str, Any], GroupTrees, GroupTrees]]:
    """Yield every variant with the group as it is, and written in another way."""
    created = {}
    for form in ("plain", "mars2", "sage-skill"):
        fit = fitted(form, trees)
        created[form] = grown(fit), grown(write(fit))
    for name, changes in VARIANTS:
        note(f"{name} {changes}")
        yield name, changes, *created[FORMS.get(name, "plain")]


def fitted(name: str, trees: list[list[Twig]]) -> list[list[Twig]]:
    """Return trees with the facts that an estimator needs.

    All programs have a reward; a first task has one.
    """
    for children in trees:
        words(children)
    if name == "mars2":
        return trees
    plain = [[bare(twig) for twig in children] for children in trees]
    if name != "sage-skill":
        return plain
    return [
        [Twig([twig], inner=1.0, word=30 + i) for i, twig in enumerate(children)]
        for children in plain
    ]


def grown(trees: list[list[Twig]]) -> GroupTrees:
    return group(*(planted(children, bytes([i]) * 32).view for i, children in enumerate(trees)))


def estimated(name: str, changes: dict[str, Any], trees: GroupTrees) -> Advantages:
    return registry.build("optimise", name, changes).estimate(trees)


def told(trees: GroupTrees, found: Advantages) -> list[np.ndarray]:
    """Return, for each scored leaf in DFS order, its advantage and those of its trained tokens."""
    output = []
    for index, view in enumerate(trees.trees):
        for item in sorted(view.scored_L, key=view.leaf_node_L.__getitem__):
            value = found.leaf_G_L[index][item]
            node_N = found.node_G_N[index] if found.node_G_N else np.full(len(view.nodes), value)
            tokens = [
                np.full(len(view.nodes[i]), node_N[i])
                for i in view.path(item)
                if view.nodes[i].trained
            ]
            output.append(np.concatenate([[value], *tokens]))
    return output


def same(left: list[np.ndarray], right: list[np.ndarray]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


@lightly
@given(forests)
def test_who_takes_part_has_a_finite_advantage_and_nobody_else(trees: Any) -> None:
    for name, changes, created, _ in each_of(trees, list):
        _check_who_takes_part(name, created, estimated(name, changes, created))


def _check_who_takes_part(name: str, made: GroupTrees, found: Advantages) -> None:
    assert len(found.leaf_G_L) == len(made.trees)
    missing = 0
    for index, view in enumerate(made.trees):
        value_L, scored_L = found.leaf_G_L[index], np.isfinite(view.rewards_L)
        assert value_L.shape == view.rewards_L.shape and not np.isinf(value_L).any()
        assert np.isnan(value_L[~scored_L]).all()
        missing += int(np.isnan(value_L[scored_L]).sum())
        if name == "otr":
            np.testing.assert_array_equal(np.isfinite(value_L), scored_L & (view.rewards_L >= 0.5))
        if found.node_G_N:
            below = np.array([node.paths > 0 for node in view.nodes])
            np.testing.assert_array_equal(np.isfinite(found.node_G_N[index]), below)
        if found.skip:
            assert (np.abs(np.nan_to_num(value_L)) < 1e-9).all()
    if name != "otr":
        assert missing == (1 if name == "mc-grpo" and not found.skip else 0)


@lightly
@given(forests, st.data())
def test_a_segment_that_ends_without_a_fork_changes_nothing(trees: Any, data: Any) -> None:
    for name, changes, whole, parted in each_of(
        trees, lambda t: [[cut(twig, data.draw) for twig in c] for c in t]
    ):
        same(
            told(whole, estimated(name, changes, whole)),
            told(parted, estimated(name, changes, parted)),
        )


@lightly
@given(forests, st.randoms(use_true_random=False))
def test_the_order_of_leaves_and_trees_changes_nothing(trees: Any, rng: Any) -> None:
    order = list(range(len(trees)))
    rng.shuffle(order)
    for name, changes, created, _ in each_of(trees, list):
        mixed = group(*(_mixed(created.trees[index], rng) for index in order))
        result = told(mixed, estimated(name, changes, mixed))
        ends = np.cumsum([len(view.scored_L) for view in mixed.trees])[:-1]
        parts = dict(zip(order, np.split(np.arange(len(result)), ends), strict=True))
        back = [result[i] for index in range(len(order)) for i in parts[index]]
        same(told(created, estimated(name, changes, created)), back)


def _mixed(view: TreeView, rng: Any) -> TreeView:
    leaves = list(view.leaves_L)
    rng.shuffle(leaves)
    rewards = {
        k: float(v) if np.isfinite(v) else None
        for k, v in zip(view.leaves_L, view.rewards_L, strict=True)
    }
    return TreeView(view.tree, leaves, rewards, view.facts)


def without_the_useless(twig: Twig) -> Twig | None:
    """Return the branch without parts that no scored leaf is below."""
    children = [c for c in map(without_the_useless, twig.children) if c]
    scored = twig.leaf and twig.reward is not None
    return replace(twig, children=children, leaf=scored) if children or scored else None


def scored_only(trees: list[list[Twig]]) -> list[list[Twig]]:
    return [[c for c in map(without_the_useless, children) if c] for children in trees]


@lightly
@given(forests)
def test_pruned_branches_and_unscorable_leaves_change_nothing(trees: Any) -> None:
    for name, changes, whole, pruned in each_of(trees, scored_only):
        same(
            told(whole, estimated(name, changes, whole)),
            told(pruned, estimated(name, changes, pruned)),
        )


@lightly
@given(forests)
def test_scores_inside_a_path_change_nothing_where_they_are_not_used(trees: Any) -> None:
    plain, scored = grown(fitted("plain", trees)), grown(trees)
    for name, changes in VARIANTS:
        if name not in REWARDED:
            note(f"{name} {changes}")
            same(
                told(plain, estimated(name, changes, plain)),
                told(scored, estimated(name, changes, scored)),
            )


def silent(twig: Twig) -> Twig:
    """Return the branch without outputs of an environment, where nothing forks."""
    twig = replace(twig, children=[silent(child) for child in twig.children])
    if twig.kind == "tool" and not twig.leaf and len(twig.children) == 1:
        return twig.children[0]
    return twig


@lightly
@given(forests)
def test_what_an_environment_says_parts_no_branch(trees: Any) -> None:
    for name, changes in VARIANTS:
        if name in {"rose", "treerl", "branch-depth", "treepo"}:
            note(f"{name} {changes}")
            spoken = grown(fitted("plain", trees))
            quiet = grown([[silent(bare(twig)) for twig in children] for children in trees])
            same(
                told(spoken, estimated(name, changes, spoken)),
                told(quiet, estimated(name, changes, quiet)),
            )


def lengthened(twig: Twig) -> Twig:
    forced = twig.kind == "forced"
    return replace(
        twig, tokens=twig.tokens + 2 * forced, children=[lengthened(c) for c in twig.children]
    )


@lightly
@given(forests)
def test_the_number_of_forced_tokens_changes_nothing(trees: Any) -> None:
    for name, changes, short, long in each_of(
        trees, lambda t: [[lengthened(twig) for twig in c] for c in t]
    ):
        same(
            told(short, estimated(name, changes, short)), told(long, estimated(name, changes, long))
        )


@each
@pytest.mark.parametrize(
    "rewards", [[1.0], [None, 1.0], [1.0, 1.0, 1.0], [0.3, 0.1 + 0.2], [None, None]]
)
def test_nothing_to_compare_teaches_nothing(
    name: str, changes: Any, rewards: list[float | None]
) -> None:
    if name == "sage-skill":
        created = group(
            planted([Twig([leaf(r, parts={"used": 0.0})], inner=1.0) for r in rewards]).view
        )
    else:
        created = group(flat(rewards))
    result = estimated(name, changes, created)
    scored = np.array([r is not None for r in rewards])
    if name in NOBODY:
        assert bool(result.skip) == (
            not scored.any() or (name == "otr" and max(r for r in rewards if r is not None) < 0.5)
        )
        return
    assert result.skip
    assert (result.leaf_G_L[0][scored] == 0).all()
    assert np.isnan(result.leaf_G_L[0][~scored]).all()


@lightly
@given(forests)
def test_portool_without_forks_is_the_mean_of_grpo(trees: Any) -> None:
    created = grown(fitted("portool", trees))
    grpo, result = estimated("grpo", {}, created), estimated("portool", {"fork": 0.0}, created)
    for index, view in enumerate(created.trees):
        for node in view.nodes:
            below = [i for i in view.scored_L if node.index in view.path(i)]
            if below and node.parent >= 0:
                mean = np.mean(grpo.leaf_G_L[index][below])
                np.testing.assert_allclose(result.node_G_N[index][node.index], mean, atol=1e-9)


@lightly
@given(forests)
def test_portools_reward_without_discount_is_the_value(trees: Any) -> None:
    """With γ = 1, no format score and the mean, R(s) = V(s) (PORTool, arXiv 2510.26020)."""
    arrays = group_arrays(grown(fitted("portool", trees)))
    result = PorTool(gamma=1.0).rewards(arrays)
    value = arrays.mean_leaves(np.nan_to_num(arrays.rewards_L))
    np.testing.assert_allclose(result[~arrays.prompt_S], value[~arrays.prompt_S], atol=1e-12)


@lightly
@given(forests)
def test_treeps_differences_of_children_cancel(trees: Any) -> None:
    created = grown(fitted("treeps", trees))
    result = estimated("treeps", {"terms": "local"}, created)
    if result.node_G_N is None:
        return
    for index, view in enumerate(created.trees):
        for node in view.nodes:
            own = node.leaf is not None and np.isfinite(view.rewards_L[node.leaf])
            children = [view.nodes[c] for c in node.children if view.nodes[c].paths]
            if node.parent >= 0 and len(children) > 1 and not own:
                total = sum(c.paths * result.node_G_N[index][c.index] for c in children)
                assert total == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("rewards", [(0.1, 0.2, 0.3), (0.3, 0.2, 0.1)])
def test_whether_a_reward_is_the_mean_is_no_matter_of_its_last_bit(
    rewards: tuple[float, ...],
) -> None:
    """Summed in either order the mean is not 0.2 to its last bit; HGPO counts values that are
    not 0."""
    trees = [
        [Twig(leaf=True, reward=r, named={"state": "X" if r == 0.1 else "A"})] for r in rewards
    ]
    result = estimated("hgpo", {"scale": "mean", "episode_term": True}, grown(trees))
    assert result.node_G_N is not None
    np.testing.assert_allclose(result.node_G_N[1][-1], -0.05, atol=1e-6)
