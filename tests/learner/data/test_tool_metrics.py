"""Metrics of environments' answers, and the doctor's word on each planted fault."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from banyan.credit.estimate import Credit
from banyan.digest import blake
from banyan.doctor.rules import diagnose
from banyan.doctor.series import series
from banyan.environments.observation import Observation, ToolOutcome
from banyan.environments.receipts import Receipt
from banyan.facts import Facts
from banyan.plugins import GroupTrees
from banyan.segment import Finish, Kind, Sampling, Segment
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.view import TreeView
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from banyan.wire.segments import facts_from_wire, segment_from_wire, segment_to_wire
from methods.advantages.grpo import Grpo
from services.learner.data import metrics, tool_metrics
from services.rollout.engines.scripted.tokenizer import CharacterTurns
from services.rollout.growth.segments import ToolAnswer
from services.rollout.growth.spec import GrowSpec
from services.rollout.growth.step import Call
from tests.banyan.environments.test_observation import SEEN, TREE
from tests.rollout.growth import (
    test_actions,
    test_longest_path,
    test_renderer_ends,
    test_unanswered,
)
from tests.rollout.growth.test_actions import SCRIPT, acting, answer
from tests.rollout.growth.test_unanswered import Growth

Change = Callable[[Observation], Observation]
ASKS = {**SCRIPT["chain"], " ": {"=": 1.0}}  # it calls behind each answer


def as_it_is(seen: Observation) -> Observation:
    return seen


def malformed(seen: Observation) -> Observation:
    return replace(seen, outcome=ToolOutcome.MALFORMED)


def failed(seen: Observation) -> Observation:
    return replace(seen, outcome=ToolOutcome.CPU)


def cut(seen: Observation) -> Observation:
    return replace(seen, answer=blake(b"all of it"))


class Faulty(Growth):
    """A tree whose answers have a fault."""

    change: Change = staticmethod(as_it_is)

    def _answer(self, call: Call) -> Any:
        if self.lost(call):
            return super()._answer(call)
        whole = answer(call)
        receipt = replace(whole.receipt, observation=self.change(whole.receipt.observation))
        return self.grower.answered(call.action, ToolAnswer(receipt, whole.text))


def view(
    monkeypatch: pytest.MonkeyPatch,
    change: Change = as_it_is,
    share: int = 1 << 30,
    asks: bool = False,
    turns: int = 3,
) -> TreeView:
    """Grow a tree with a fault; return it as it comes back from messages."""
    if asks:
        monkeypatch.setattr(test_unanswered, "SCRIPT", {"chain": ASKS})
    made = Faulty(acting(turns=turns, max_tokens=40, width=8), share=share)
    monkeypatch.setattr(Faulty, "change", staticmethod(change))
    grower = made.run(random.Random(1)).grower
    assert made.grown is not None
    tree = Tree(grower.tree.tree_id)
    for segment in grower.tree:
        tree.add(segment_from_wire(segment_to_wire(segment)))
    rewards = {leaf: float(n % 2) for n, leaf in enumerate(made.grown)}
    ends = {**rewards, **dict.fromkeys(made.endings)}
    return TreeView(tree, list(made.grown), ends, Facts(turns=turns))


def measured(view: TreeView) -> dict[str, float]:
    group = GroupTrees("g", [view])
    return metrics.of_batch([Credit(group, Grpo().estimate(group))], lambda segment: 0)


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "calls-malformed": ("calls_malformed_share", {"change": malformed}),
    "calls-failed": ("calls_failed_share", {"change": failed}),
    "answers-cut": ("answers_cut_share", {"change": cut}),
    "turns-used-up": ("turns_used_up_share", {"asks": True}),
    "unanswered": ("unanswered_share", {"share": 1}),
}
SHARES = [metric for metric, _ in FAULTS.values()]


@pytest.mark.parametrize("rule", FAULTS)
def test_each_fault_is_measured_and_named_by_the_doctor(
    monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    metric, fault = FAULTS[rule]
    found = measured(view(monkeypatch, **fault))
    assert found[metric] == 1.0
    others = {name: found.get(name, 0.0) for name in SHARES if name != metric}
    assert not any(others.values()), others
    run = series((step, {name: found.get(name, 0.0) for name in SHARES}) for step in range(5))
    assert [finding.rule.name for finding in diagnose(run)] == [rule]


def test_paths_that_act_well_have_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    good = view(monkeypatch, turns=9)
    found = measured(good)
    assert {name: found[name] for name in SHARES} == dict.fromkeys(SHARES, 0.0)
    tools = [segment for segment in good.tree if segment.kind is Kind.TOOL]
    assert found["turns_per_path"] == len(tools) / 8, "no answer is shared here"


def test_shares_are_of_answers_and_of_leaves() -> None:
    """Of four answers, each counted once, each fault has one; so has one of six leaves."""
    tree = Tree(TREE, [Segment(TREE, b"", 0, 0, Kind.PROMPT, np.arange(3))])
    assert tree.root is not None

    def says(parent: Segment, ordinal: int, finish: Finish, most: int = 2, fork: int = 2) -> Leaf:
        policy = {"logprobs_T": -np.ones(2), "sampling": Sampling(max_new_tokens=most)}
        said = Segment(
            TREE, parent.id, fork, ordinal, Kind.POLICY, np.arange(2), finish=finish, **policy
        )
        tree.add(said)
        return Leaf(said.id, 2)

    def answered(action: Leaf, outcome: ToolOutcome, change: Change = as_it_is) -> Segment:
        seen = change(replace(SEEN, action=action.segment, outcome=outcome))
        receipt = Receipt(seen, b"m" * 32)
        tool = Segment(TREE, action.segment, 2, 0, Kind.TOOL, np.arange(2), receipt=receipt)
        tree.add(tool)
        return tool

    one = answered(says(tree.root, 0, Finish.TOOL_CALL, fork=3), ToolOutcome.OK)
    two = answered(says(one, 0, Finish.TOOL_CALL), ToolOutcome.OK, cut)
    other = answered(says(one, 1, Finish.TOOL_CALL), ToolOutcome.MALFORMED)
    last = answered(says(two, 0, Finish.TOOL_CALL), ToolOutcome.CPU)
    leaves = [
        says(tree.root, 1, Finish.LENGTH, most=3, fork=3),  # it has acted never
        says(one, 0, Finish.STOP, fork=1),  # forked inside of an answer: 1 turn
        says(other, 0, Finish.TOOL_CALL),  # unanswered: 2
        says(two, 1, Finish.LENGTH, most=3),  # used up: 2
        replace(says(two, 2, Finish.TOOL_CALL), end=1),  # inside of an action: 2
        Leaf(last.id, 2),  # 3
    ]
    measured = tool_metrics.of_views([TreeView(tree, leaves, {}, Facts(turns=2))])
    of_leaves = {"unanswered_share": 1 / 6, "turns_used_up_share": 1 / 6, "turns_per_path": 10 / 6}
    assert measured == dict.fromkeys(SHARES, 0.25) | of_leaves


def test_turns_that_are_used_up_are_no_limit_of_length(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = measured(view(monkeypatch, asks=True))
    assert (asks["length_limited_share"], asks["turns_per_path"]) == (0.0, 3.0)
    long = measured(view(monkeypatch, asks=True, turns=99))
    assert (long["length_limited_share"], long["turns_used_up_share"]) == (1.0, 0.0)


def ended(
    monkeypatch: pytest.MonkeyPatch, assignment: GrowSpec, **known: int
) -> tuple[float, float]:
    """Grow paths that always act; return the shares of used up turns and of limited lengths."""
    monkeypatch.setattr(test_actions, "SCRIPT", {"chain": ASKS})
    grower, over = test_actions.grow(assignment)
    assert over
    rewards: dict[Leaf, float | None] = {leaf: n % 2.0 for n, leaf in enumerate(grower.leaves)}
    found = measured(TreeView(grower.tree, list(rewards), rewards, Facts(**known)))
    return found["turns_used_up_share"], found["length_limited_share"]


@pytest.mark.parametrize("longest", range(18, 26))  # within an answer, and within an action
def test_the_models_end_is_a_limit_of_length(monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    """Such a segment has fewer tokens than `max_new_tokens`, as one whose turns are used up."""
    found = ended(monkeypatch, test_longest_path.within(longest), turns=9, longest_path=longest)
    assert found == (0.0, 1.0)


def test_an_action_that_cannot_be_bridged_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = staticmethod(test_renderer_ends.bridge_none)
    monkeypatch.setattr(CharacterTurns, "bridge", bridge)
    assert ended(monkeypatch, acting(turns=9, max_tokens=200, width=16), turns=9) == (0.0, 0.0)


def test_what_an_environment_allows_comes_from_the_trees_spec() -> None:
    spec = EnvironmentSpec(name="calculator", turns=3, longest_path=512)
    text = GenerateSpec(name="turns", max_new_tokens=8, environment=spec).to_json()
    known = [
        facts_from_wire(tree_pb2.Tree(spec=tree_pb2.TreeSpec(generate_json=given)))
        for given in (text, GenerateSpec(name="iid", max_new_tokens=8).to_json())
    ]
    assert [(facts.turns, facts.longest_path) for facts in known] == [(3, 512), (0, 0)]


def test_an_answer_is_what_stands_behind_the_last_one_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = view(monkeypatch)
    leaves = range(len(good.leaves_L))
    said = {metrics._answer(good, leaf) for leaf in leaves}
    assert said <= {"a", "b", "=6*7?", "=1*1?"} and len(said) > 1
    assert measured(good)["distinct_answers"] == len(said) / len(leaves)


def test_batches_that_do_not_act_have_no_such_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = {"": {"a": 0.5, "b": 0.5}, "a": {"": 1.0}, "b": {"": 1.0}}
    monkeypatch.setattr(test_unanswered, "SCRIPT", {"chain": chain})
    silent = Growth(acting(width=4)).run(random.Random(1)).grower
    views = [TreeView(silent.tree, list(silent.leaves), dict.fromkeys(silent.leaves, 0.0))]
    assert tool_metrics.of_views(views) == {}
