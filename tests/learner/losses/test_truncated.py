"""Tokens drawn from a truncated distribution: a step's measures, and the correction."""

from typing import Any

import numpy as np
import pytest

from banyan.policy import PolicyVersion
from banyan.recipe import Optimise
from banyan.segment import Kind, Sampling, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from services.learner.losses.tally import Tally
from services.learner.losses.tokens import Tokens
from services.learner.model.load import prepare
from services.learner.packing import packing, unroll
from services.learner.packing.packing import PackedSequence
from services.learner.training.trainer import StepReport, Trainer, settle
from services.rollout.engines.torch_engine.engine import TorchEngine
from services.rollout.engines.torch_engine.forward import Forward
from services.rollout.engines.torch_engine.kv.kv_budget import Limits
from tests.learner.hand_made_tokens import tokens
from tests.rollout.conftest import Letters, ask, finish, prompt, tiny_llama

NOW = b"p0"
TRUNCATED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "top_k": 1},  # as LATR's tree phase
    # No distribution is stored with it, and it is certain all the same.
    "greedy_alone": {"temperature": 0.0},
    "top_p": {"top_p": 0.8},
    "top_k": {"top_k": 3},
    "tempered": {"temperature": 0.7, "top_p": 0.8},
}


def sampled(how: dict[str, Any]) -> PackedSequence:
    """Return four branches of a prompt as the torch engine samples them, packed."""
    tokenizer = Letters()
    tokenizer.eos = frozenset()
    engine = TorchEngine(Forward(tiny_llama()), tokenizer, Limits(), PolicyVersion(1, 0, NOW))
    ended = finish(engine, [ask(b, prompt(9), b, **how) for b in range(4)])
    tree = Tree(b"t" * 32)
    tree.add(Segment(tree.tree_id, b"", 0, 0, Kind.PROMPT, prompt(9)))
    assert tree.root is not None
    leaves = []
    for branch, branch_end in sorted(ended.items()):  # type: ignore[type-var]
        segment = Segment(
            tree.tree_id,
            parent=tree.root.id,
            fork=9,
            ordinal=branch,
            kind=Kind.POLICY,
            tokens_T=branch_end.tokens_T,
            logprobs_T=branch_end.logprobs_T,
            sampled_logprobs_T=branch_end.sampled_logprobs_T,
            policy=NOW,
            sampling=Sampling(**how),
        )
        tree.add(segment)
        leaves.append(Leaf(segment.id, len(segment)))
    view = TreeView(tree, leaves, dict.fromkeys(leaves, 1.0))
    return packing.pack(
        [unroll.unroll(view, range(4), np.array([1.0, -1.0, 1.0, -1.0]), None, NOW)], 99
    )[0]


def stepped(sequence: PackedSequence, **settings: Any) -> StepReport:
    """Take one optimizer step of the weights that sampled."""
    settle(1)
    model = tiny_llama().requires_grad_(True)
    return Trainer(prepare(model), Optimise(loss="reinforce", loss_settings=settings)).step(
        [sequence], 0
    )


@pytest.mark.parametrize("how", TRUNCATED.values(), ids=TRUNCATED)
def test_truncated_sampling_is_no_mismatch(how: dict[str, Any]) -> None:
    """The weights that sampled are those in training, so each token has the same probability."""
    report = stepped(sampled(how))
    assert report.mismatch_kl < 1e-6
    assert report.measures["ess"] > 0.9999 and report.measures["path_ess"] > 0.9999
    assert report.measures["ratio_0.8_1.25"] == 1.0


@pytest.mark.parametrize("how", TRUNCATED.values(), ids=TRUNCATED)
def test_importance_weights_and_rejection_correct_for_what_was_drawn_from(
    how: dict[str, Any],
) -> None:
    sequence = sampled(how)
    d = (sequence.behaviour_P_T - sequence.drawn_P_T)[sequence.mask_P_T]
    assert d.min() < -0.1
    report = stepped(
        sequence,
        importance={"level": "token", "cap": 0.0},
        reject={"by": "k3", "over": "token", "high": 0.01},
    )
    assert report.measures["importance_mean"] == pytest.approx(np.exp(d).mean(), rel=1e-4)
    assert report.measures["rejected_share"] == pytest.approx((np.exp(d) - d - 1 > 0.01).mean())


def far() -> Tokens:
    """Return two tokens of a nucleus of mass 0.8, and one half as likely now as at sampling."""
    now = np.log([0.4, 0.2, 0.3])
    return tokens(now, old=now, behaviour=np.log([0.4, 0.2, 0.6]), drawn=np.log([0.5, 0.25, 0.75]))


def test_a_step_tells_age_from_truncation() -> None:
    tally = Tally()
    tally.watch(far())
    assert tally.means()["ess"] == pytest.approx(2.5**2 / (3 * 2.25))
    assert tally.means()["ratio_0.5_0.8"] + tally.means()["ratio_below_0.5"] == pytest.approx(1 / 3)
    assert far().drift().exp().tolist() == [pytest.approx([1, 1, 0.5])]
    assert far().correction().exp().tolist() == [pytest.approx([0.8, 0.8, 0.4])]
