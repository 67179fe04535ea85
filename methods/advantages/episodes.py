"""Steps of agents as rows, a helper of estimators (not a method): return and state of each step.

A row is a step that the policy acted in, on one path; a step that several paths share has a row for
each, so that all statistics are those of the flat sequences, and its advantage is the mean over its
rows. A reward of a step is its own: that of the place that ends it, and what its answer earned in
the environment. The rest of a leaf's reward is that of its path's last step.

A state is the attribute `state` of the step's segment. If no segment of the group has one, it is
the anchor that the environment gave with its answer right before the step; without one it is that
answer itself, or the prompt for a first step; and without an answer (a fork within a turn), the
place in the tree, which stands for all that came before. Texts that are only alike may count as one
state: in the order of trees and places each joins the first state whose first text is alike, so
that order matters there. Anchors are names: alike is not the same.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from banyan.credit import stats
from banyan.credit.group_arrays import GroupArrays
from banyan.credit.stats import Bools, Floats, Ints
from banyan.segment import Kind

_REMEDY = (
    "name the state before each action in the segment's attribute `state`, or on no segment at all"
)


@dataclass(frozen=True)
class Episodes:
    """Rows of a group, path after path.

    leaf_R, step_R: leaf and step of the row
    return_R: discounted return
    score_R: total reward of the path
    state_R: number of the state
    """

    leaf_R: Ints
    step_R: Ints
    return_R: Floats
    score_R: Floats
    state_R: Ints


def episodes(arrays: GroupArrays, gamma: float, alike: float = 1.0) -> Episodes:
    """Return the rows of a group.

    gamma: discount
    alike: difflib's ratio from which two texts are one state; 1 where they must be equal
    """
    leaf_R, step_R = arrays.rows
    acted_R = arrays.trained_S[step_R] > 0
    earned_S = _earned(arrays)
    reward_R = np.nan_to_num(arrays.reward_S)[step_R]
    last_R = arrays.step_L[leaf_R] == step_R
    rest_L = _without(arrays.rewards_L, arrays.along(earned_S))
    reward_R = np.where(last_R, rest_L[leaf_R], reward_R) + earned_S[step_R]
    score_L = np.asarray(np.bincount(leaf_R, reward_R, len(arrays.rewards_L)), np.float64)
    answers_R = _answers(arrays)[step_R]
    return_R = _returns(arrays, leaf_R, acted_R, answers_R, reward_R, gamma)
    state_R = _states(arrays, alike)[step_R]
    kept = np.flatnonzero(acted_R)
    return Episodes(
        leaf_R=leaf_R[kept],
        step_R=step_R[kept],
        return_R=return_R[kept],
        score_R=score_L[leaf_R[kept]],
        state_R=state_R[kept],
    )


def _earned(arrays: GroupArrays) -> Floats:
    """Return what the answers in each step earned, a part of its paths' rewards."""
    earned_G = [view.facts.earned for view in arrays.group.trees]
    return np.array(
        [
            sum(earned_G[tree].get(node.segment.id, 0.0) for node in step.nodes)
            for tree, step in zip(arrays.tree_S, arrays.steps, strict=True)
        ],
        np.float64,
    )


def _without(reward_L: Floats, earned_L: Floats) -> Floats:
    """Return the rewards of leaves without what was earned; 0 where only rounding is left."""
    rest_L = reward_L - earned_L
    return np.where(np.abs(rest_L) <= 1e-12 * np.abs(earned_L), 0.0, rest_L)


def _answers(arrays: GroupArrays) -> Bools:
    """Return whether a step is the answer to the action of the one before.

    It stands alone where its action has a reward of its own.
    """
    return np.array([step.nodes[0].segment.kind is Kind.TOOL for step in arrays.steps], bool)


def _returns(
    arrays: GroupArrays,
    leaf_R: Ints,
    acted_R: Bools,
    answers_R: Bools,
    reward_R: Floats,
    gamma: float,
) -> Floats:
    """Return R_t = r_t + γ · R_{t+1} along each path.

    A step without an action takes no time, and an answer is in the time of its action.
    """
    at_L_D = np.full_like(arrays.path_L_D, -1)
    rank_R = arrays.rank_S[arrays.rows[1]]
    at_L_D[leaf_R, rank_R] = np.arange(len(leaf_R))
    return_R, later_L = np.zeros(len(leaf_R)), np.zeros(len(at_L_D))
    answered_L = np.zeros(len(at_L_D), bool)  # whether the step behind is an answer
    for row_L in at_L_D.T[::-1]:
        here = np.flatnonzero(row_L >= 0)
        row = row_L[here]
        timed = (acted_R[row] | answers_R[row]) & ~answered_L[here]
        return_R[row] = reward_R[row] + np.where(timed, gamma, 1.0) * later_L[here]
        later_L[here], answered_L[here] = return_R[row], answers_R[row]
    return return_R


def _states(arrays: GroupArrays, alike: float) -> Ints:
    """Return a number for the state that each step was taken in."""
    named = arrays.named("state")
    if any(value is not None for value in named):
        return _numbered(list(arrays.needed("state", "the estimator", _REMEDY)), alike)
    return _numbered([_place(arrays, index) for index in range(len(arrays.steps))], alike)


def _place(arrays: GroupArrays, index: int) -> Hashable:
    above = int(arrays.above_S[index])
    if above < 0 or arrays.above_S[above] < 0:
        return "prompt"
    step = arrays.steps[above]
    return ("anchor", step.anchor) if step.anchor else step.observed or above


def _numbered(keys: list[Hashable], alike: float) -> Ints:
    known: dict[Hashable, int] = {}
    if alike == 1.0:
        return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)
    firsts: list[tuple[int, Sequence[Any]]] = []  # the first text of each state
    for key in dict.fromkeys(keys):
        text = _text(key)
        near = None if text is None else _near(text, firsts, alike)
        known[key] = len(known) if near is None else near
        if text is not None and near is None:
            firsts.append((known[key], text))
    return np.array([known[key] for key in keys], np.int64)


def _text(key: Hashable) -> Sequence[Any] | None:
    """Return the text of a state by letter or token; None for one that is a place or a number."""
    if isinstance(key, bytes):
        tokens: list[int] = np.frombuffer(key, np.int32).tolist()
        return tokens
    return key if isinstance(key, str) else None


def _near(
    text: Sequence[Any], firsts: Iterable[tuple[int, Sequence[Any]]], alike: float
) -> int | None:
    # autojunk would ignore characters that are frequent in long texts.
    matcher = SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(text)
    for number, first in firsts:
        matcher.set_seq1(first)
        # The two quick ratios are upper bounds.
        ratios = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
        if all(ratio() >= alike for ratio in ratios):
            return number
    return None


def normalised(
    value_R: Floats, label_R: Ints | None, scale: str, ddof: int, epsilon: float = 1e-6
) -> Floats:
    """Return values against the mean of their peers; `mean_std`: over their deviation, too."""
    if scale == "mean":
        return stats.centred(value_R, label_R)
    return stats.standardised(value_R, label_R, ddof=ddof, epsilon=epsilon)
