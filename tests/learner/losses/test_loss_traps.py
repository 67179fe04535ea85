"""Traps that other tree trainers fell into, and the measures of a step's ratios."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from banyan.segment import Kind, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from services.learner import losses
from services.learner.packing import packing, unroll
from services.learner.packing.packing import PackedSequence
from tests.learner.flat_reference import stepped


def trunk_and_leaves(first: bytes = b"now") -> tuple[TreeView, Segment]:
    tree = Tree(b"s" * 32)
    root = Segment(tree.tree_id, b"", 0, 0, Kind.PROMPT, [1, 2, 3])
    trunk = Segment(tree.tree_id, root.id, 3, 0, Kind.POLICY, [4, 5], [-0.5, -0.7], policy=first)
    ends = [
        Segment(tree.tree_id, trunk.id, 2, i, Kind.POLICY, [6 + i], [-0.9], policy=b"now")
        for i in range(2)
    ]
    for segment in (root, trunk, *ends):
        tree.add(segment)
    leaves = [Leaf(s.id, 1) for s in ends]
    return TreeView(tree, leaves, dict.fromkeys(leaves, 1.0)), trunk


def sequence_of(view: TreeView, leaf_L: Any) -> PackedSequence:
    return packing.pack(
        [unroll.unroll(view, range(len(leaf_L)), np.array(leaf_L), None, b"now")], 99
    )[0]


def slopes(
    sequence: PackedSequence, logp: Any, name: str, given_settings: dict[str, Any]
) -> list[float]:
    """Return the gradient at each prediction of a sequence with these log-probs."""
    from services.learner.losses.aggregate import totals_of
    from services.learner.model.load import Pass
    from services.learner.training import gather as gathering

    logp_E = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    gathered = gathering.tokens(
        sequence,
        Pass(logp_E, torch.zeros(len(sequence.place_R), dtype=torch.float64), torch.zeros(0)),
    )
    losses.build(name, given_settings).compute(gathered, totals_of([sequence]))[0].backward()
    assert logp_E.grad is not None
    return logp_E.grad.tolist()  # type: ignore[no-any-return]


def test_a_trunks_targets_count_once_a_leaf_and_once_with_nodes() -> None:
    """Two trunk tokens, two leaves of one: 6 path tokens, 4 of nodes; A = 1 and 3."""
    sequence = sequence_of(trunk_and_leaves()[0], [1.0, 3.0])
    assert slopes(sequence, [0.0] * 4, "reinforce", {}) == pytest.approx(
        [-4 / 6, -4 / 6, -1 / 6, -3 / 6]
    )
    assert slopes(sequence, [0.0] * 4, "reinforce", {"count": "nodes"}) == pytest.approx(
        [-2 / 4, -2 / 4, -1 / 4, -3 / 4]
    )


def test_advantages_that_differ_per_leaf_are_clipped_apart() -> None:
    """A trunk of an older policy has r = 1.5, A = 1 and −1: only the good path's part is clipped.

    Their mean, 0, would teach nothing.
    """
    sequence = sequence_of(trunk_and_leaves(b"old")[0], [1.0, -1.0])
    logp = [np.log(1.5) - 0.5, np.log(1.5) - 0.7, -0.9, -0.9]
    assert slopes(sequence, logp, "ppo-clip", {}) == pytest.approx(
        [1.5 / 6, 1.5 / 6, -1 / 6, 1 / 6]
    )


def test_a_trunk_that_a_newer_policy_went_on_from_keeps_its_log_probs() -> None:
    """Only the trunk is foreign, and it is compared with what was recorded when it was sampled."""
    view, trunk = trunk_and_leaves(b"old")
    sequence = sequence_of(view, [1.0, 1.0])
    assert sequence.foreign_P_T.tolist() == [[True, True, False]] * 2
    np.testing.assert_array_equal(
        sequence.behaviour_P_T[:, :2], np.tile(trunk.logprobs_T.astype(np.float64), (2, 1))
    )
    assert sequence.share_P_T.tolist() == [[0.5, 0.5, 1.0]] * 2


def test_what_a_step_says_of_its_ratios(tiny_llama: Callable[..., Any]) -> None:
    """Half of the tokens are twice as likely as when sampled: ESS = (Σw)² / (n Σw²) = .9."""
    from services.learner.model.load import forward, prepare

    model, sequence = prepare(tiny_llama(0)), sequence_of(trunk_and_leaves()[0], [1.0, -1.0])
    with torch.no_grad():
        logp = forward(model, sequence)[0].numpy()[sequence.index_P_T]
    sequence.drawn_P_T[:] = sequence.behaviour_P_T[:] = logp - np.log(
        [[2.1, 1.0, 1.0], [1.0, 2.1, 2.1]]
    )
    report, _ = stepped(
        model,
        [sequence],
        "reinforce",
        {"importance": {"level": "token", "cap": 2.0}, "reject": {"high": 3.0}},
    )
    measures = report.measures
    assert measures["ess"] == pytest.approx(9.3**2 / (6 * (3 + 3 * 2.1**2)))
    assert measures["path_ess"] == pytest.approx((2.1 + 4.41) ** 2 / (2 * (2.1**2 + 4.41**2)))
    assert [
        measures[f"ratio_{n}"] for n in ("below_0.5", "0.5_0.8", "0.8_1.25", "1.25_2", "above_2")
    ] == [0, 0, 0.5, 0, 0.5]
    assert measures["truncated_share"] == 0.5
    assert measures["rejected_share"] == 0.5  # the second path's product is 4.41
    assert measures["importance_mean"] == pytest.approx(1.5)
