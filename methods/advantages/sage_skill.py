"""sage-skill: two tasks in a row on one path; the second rewards skills that the first wrote.

Paper: SAGE, arXiv 2512.17102
Formula: R1 = r1 + [r1 = 1] [r2 = 1] used, R2 = r2 + [r2 = 1] used; A = R_k − mean over paths

A path holds task 1 down to the place whose own reward is r1, and task 2 from there to its leaf,
whose reward is r2. `used` is 1 if task 2 ran a skill that task 1 made: the part `used` of the
leaf's score. Steps of task k have the advantage of R_k, without a standard deviation. A step that
several paths share gets the mean over them.
"""

from dataclasses import dataclass

import numpy as np

from banyan import facts
from banyan.credit import stats
from banyan.credit.group_arrays import GroupArrays, group_arrays
from banyan.credit.stats import Bools, Floats, Ints
from banyan.errors import InvalidInput
from banyan.plugins import Advantages, GroupTrees
from methods.advantages import checks


@dataclass(frozen=True)
class SageSkill:
    """Settings. used: part of a leaf's score that is 1 if a skill was used."""

    used: str = "used"

    def __post_init__(self) -> None:
        checks.word("used", self.used)

    @property
    def needs(self) -> frozenset[str]:
        """Reward of the first task, and the use of its skills by the second."""
        return frozenset({facts.INSIDE, facts.part(self.used)})

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return one advantage per step."""
        arrays = group_arrays(group, rewarded=True)
        scored = np.flatnonzero(arrays.scored_L)
        first_R, between_L = _first(arrays)
        r1 = arrays.reward_S[between_L[scored]]
        total1, total2 = chained(r1, arrays.rewards_L[scored], self._used(arrays, scored))
        value1_L = np.zeros(len(arrays.rewards_L))
        value1_L[scored] = stats.centred(total1)
        value2_L = np.zeros(len(arrays.rewards_L))
        value2_L[scored] = stats.centred(total2)
        leaf_R = arrays.rows[0]
        value_S = arrays.mean_rows(np.where(first_R, value1_L[leaf_R], value2_L[leaf_R]))
        return arrays.node_valued(np.where(arrays.prompt_S, 0.0, value_S))

    def _used(self, arrays: GroupArrays, scored: Ints) -> Floats:
        leaves = [(view, leaf) for view in arrays.group.trees for leaf in view.leaves_L]
        values = [leaves[i][0].facts.of_leaf(leaves[i][1], self.used) for i in scored]
        for index, value in zip(scored, values, strict=True):
            if value is None:
                what = (
                    f"sage-skill needs the part {self.used!r} of every leaf's score: 1 where a "
                    "skill was used, else 0"
                )
                raise arrays.lacks(int(arrays.step_L[index]), what, "let the scorer say it")
        return np.array(values, np.float64)


def chained(r1: Floats, r2: Floats, used: Floats) -> tuple[Floats, Floats]:
    """Return R1 and R2 of each chain."""
    bonus = (r2 == 1) * (used > 0)
    return r1 + (r1 == 1) * bonus, r2 + bonus


def _first(arrays: GroupArrays) -> tuple[Bools, Ints]:
    """Return the rows of task 1, and the step that ends it on each path.

    Raises InvalidInput unless each path has exactly one such step.
    """
    leaf_R, step_R = arrays.rows
    ends_R = np.isfinite(arrays.reward_S)[step_R] & (arrays.step_L[leaf_R] != step_R)
    count_L = np.bincount(leaf_R, ends_R, len(arrays.rewards_L))
    wrong = np.flatnonzero(arrays.scored_L & (count_L != 1))
    if len(wrong):
        count = int(count_L[wrong[0]])
        leaf = arrays.steps[int(arrays.step_L[wrong[0]])].nodes[-1].segment.id.hex()[:12]
        raise InvalidInput(
            "sage-skill needs one place with a reward of its own, the end of task 1, on each path, "
            f"got {count} above segment {leaf} of group {arrays.group.group_id}: score the end of "
            "task 1 there"
        )
    between_L = np.full(len(arrays.rewards_L), -1, np.int64)
    between_L[leaf_R[ends_R]] = step_R[ends_R]
    return arrays.rank_S[step_R] <= arrays.rank_S[between_L[leaf_R]], between_L
