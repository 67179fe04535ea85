"""The trees of a group as arrays, for estimators.

Axes: leaves `_L`, steps `_S`, and rows `_R`, one for each step of each scored path. The prompts of
a group's trees are one state: the first steps of all trees are alternatives to each other.
Computation over leaves × steps is numpy over rows; the nodes are walked once, to make the steps.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from banyan.credit import group as groups
from banyan.credit import stats
from banyan.credit.stats import Bools, Floats, Ints
from banyan.credit.steps import TURNS, Step, steps_of
from banyan.errors import InvalidInput
from banyan.plugins import Advantages, GroupTrees
from banyan.tree import Leaf


@dataclass(frozen=True, eq=False)
class GroupArrays:
    """Arrays of one group.

    tree_L, tree_S: index of the tree
    step_L: index of the step that a leaf ends, -1 where the leaf has no score
    above_S: index of the step before, -1 for a prompt
    rank_S: steps before it on its path
    step_N: for each tree, the step of each node
    """

    group: GroupTrees
    steps: list[Step]
    rewards_L: Floats
    tree_L: Ints
    step_L: Ints
    tree_S: Ints
    above_S: Ints
    rank_S: Ints
    step_N: tuple[Ints, ...]

    # -- rows --

    @cached_property
    def scored_L(self) -> Bools:
        """Mask of the leaves that have a reward."""
        return self.step_L >= 0

    @cached_property
    def path_L_D(self) -> Ints:
        """Steps of each scored leaf from its prompt on, padded with -1."""
        path = np.full((len(self.step_L), int(self.rank_S.max(initial=0)) + 1), -1, np.int64)
        at_L, leaf_L = self.step_L[self.scored_L], np.flatnonzero(self.scored_L)
        while len(at_L):
            path[leaf_L, self.rank_S[at_L]] = at_L
            at_L = self.above_S[at_L]
            leaf_L, at_L = leaf_L[at_L >= 0], at_L[at_L >= 0]
        return path

    @cached_property
    def rows(self) -> tuple[Ints, Ints]:
        """Pair (leaf_R, step_R): path after path, each from its prompt on."""
        leaf_R, rank_R = np.nonzero(self.path_L_D >= 0)
        return leaf_R, self.path_L_D[leaf_R, rank_R]

    def below(self, value_R: Floats) -> Floats:
        """Sum row values over the paths through each step."""
        return np.bincount(self.rows[1], value_R, len(self.steps)).astype(np.float64)

    def along(self, value_S: Floats) -> Floats:
        """Sum step values along each path."""
        leaf_R, step_R = self.rows
        return np.bincount(leaf_R, value_S[step_R], len(self.step_L)).astype(np.float64)

    def mean_rows(self, value_R: Floats) -> Floats:
        """Average row values over the paths through each step."""
        return self.below(value_R) / self.paths_S

    def mean_leaves(self, value_L: Floats) -> Floats:
        """Return V(n): the mean over the scored leaves at or below each step.

        At the prompts the mean runs over all scored leaves of the group.
        """
        value_S = self.mean_rows(value_L[self.rows[0]])
        value_S[self.prompt_S] = value_L[self.scored_L].mean() if self.scored_L.any() else 0.0
        return value_S

    # -- steps --

    @cached_property
    def prompt_S(self) -> Bools:
        """Mask of the steps that are prompts."""
        return self.above_S < 0

    @cached_property
    def parent_S(self) -> Ints:
        """Index of the step before; a prompt's own index for a prompt."""
        return np.where(self.prompt_S, np.arange(len(self.steps)), self.above_S)

    @cached_property
    def sibling_S(self) -> Ints:
        """Label of the steps that follow the same step; first steps of the group are siblings."""
        first_S = self.prompt_S[self.parent_S]
        return stats.labels_of(np.where(self.prompt_S, -2, np.where(first_S, -1, self.above_S)))

    @cached_property
    def paths_S(self) -> Ints:
        """Number of scored leaves at or below."""
        return np.array([step.paths for step in self.steps], np.int64)

    @cached_property
    def parted_S(self) -> Bools:
        """Mask of the steps that not all paths of the step before take.

        For a first step these are the paths of the whole group.
        """
        before_S = np.where(
            self.prompt_S[self.parent_S], self.scored_L.sum(), self.paths_S[self.parent_S]
        )
        return np.asarray(~self.prompt_S & (self.paths_S != before_S))

    @cached_property
    def trained_S(self) -> Ints:
        """Number of a step's tokens that the policy sampled."""
        return np.array([sum(len(n) for n in s.nodes if n.trained) for s in self.steps], np.int64)

    @cached_property
    def end_S(self) -> Ints:
        """Number of sampled tokens on the path down to the end of the step."""
        end_S = self.trained_S.copy()
        for index, above in enumerate(self.above_S):  # parents come first
            end_S[index] += end_S[above] if above >= 0 else 0
        return end_S

    @cached_property
    def reward_S(self) -> Floats:
        """Reward of the place that ends a step; nan where it has none.

        The reward of a leaf belongs to its path and is not included. Steps end at every such place
        only if they were made `rewarded`.
        """
        own = np.full(len(self.steps), np.nan)
        for index, step in enumerate(self.steps):
            last, facts = step.nodes[-1], self.group.trees[self.tree_S[index]].facts
            own[index] = facts.rewards.get(Leaf(last.segment.id, last.stop), np.nan)
        return own

    def named(self, name: str) -> list[float | str | None]:
        """Return an attribute of each step: that of its first segment that has it."""
        return [self._named(i, step, name) for i, step in enumerate(self.steps)]

    def _named(self, index: int, step: Step, name: str) -> float | str | None:
        facts = self.group.trees[self.tree_S[index]].facts
        values = (facts.of_segment(n.segment.id, name) for n in step.nodes)
        return next((v for v in values if v is not None), None)

    def needed(self, name: str, estimator: str, remedy: str) -> list[float | str]:
        """Return an attribute that every trained step must have.

        Raises InvalidInput that names the first segment without it.
        """
        values = self.named(name)
        for index, value in enumerate(values):
            if value is None and self.trained_S[index]:
                raise self.lacks(index, f"{estimator} needs {name!r} on every step", remedy)
        return ["" if v is None else v for v in values]

    def lacks(self, step: int, what: str, remedy: str) -> InvalidInput:
        """Return the error of a step without a required value."""
        segment = self.steps[step].nodes[-1].segment
        return InvalidInput(
            f"{what}; segment {segment.id.hex()[:12]} of group {self.group.group_id} has none: "
            f"{remedy}"
        )

    # -- out --

    def leaf_valued(self, value_L: Floats) -> Advantages:
        """Return one advantage for each leaf; nan where it has no score."""
        return groups.leaf_valued(self.group, np.where(self.scored_L, value_L, np.nan))

    def node_valued(self, value_S: Floats) -> Advantages:
        """Return one advantage for each step, on all of its nodes.

        A leaf's advantage is the mean over its path's trained tokens.
        """
        tokens_L = self.along(self.trained_S.astype(np.float64))
        value_L = self.along(value_S * self.trained_S) / np.maximum(tokens_L, 1)
        leaf_G_L = groups.by_tree(self.group, np.where(self.scored_L, value_L, np.nan))
        padded_S = np.append(value_S, np.nan)  # step -1: nodes without a scored leaf below
        skip = groups.why_nothing(value_S[self.trained_S > 0], int(self.scored_L.sum()))
        return Advantages(leaf_G_L, tuple(padded_S[at_N] for at_N in self.step_N), skip)


def group_arrays(group: GroupTrees, by: str = TURNS, rewarded: bool = False) -> GroupArrays:
    """Return the arrays of a group. by, rewarded: definition of a step, as in `steps_of`."""
    steps: list[Step] = []
    tree_S: list[int] = []
    step_N: list[Ints] = []
    step_L: list[int] = []
    for index, view in enumerate(group.trees):
        tree_steps, at_N = steps_of(view, by, rewarded)
        base = len(steps)
        for step in tree_steps:
            step.above = step.above + base if step.above >= 0 else -1
        steps += tree_steps
        tree_S += [index] * len(tree_steps)
        step_N.append(np.array([at + base if at >= 0 else -1 for at in at_N], np.int64))
        scored = np.isfinite(view.rewards_L)
        step_L += [
            int(step_N[-1][node]) if is_scored else -1
            for node, is_scored in zip(view.leaf_node_L, scored, strict=True)
        ]
    above_S = np.array([step.above for step in steps], np.int64)
    counts = [len(view.rewards_L) for view in group.trees]
    return GroupArrays(
        group=group,
        steps=steps,
        rewards_L=groups.rewards_of(group),
        tree_L=np.repeat(np.arange(len(counts)), counts),
        step_L=np.array(step_L, np.int64),
        tree_S=np.array(tree_S, np.int64),
        above_S=above_S,
        rank_S=_ranks(above_S),
        step_N=tuple(step_N),
    )


def _ranks(above_S: Ints) -> Ints:
    rank_S = np.zeros(len(above_S), np.int64)
    for index, above in enumerate(above_S):  # parents come first
        rank_S[index] = rank_S[above] + 1 if above >= 0 else 0
    return rank_S
