"""Actions that get no answer: their paths end as leaves, and the rest of the tree goes on."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.environments.endings import Ending
from banyan.plugins import Branch, Expansion, Plan
from banyan.reasons import Reason
from banyan.segment import Finish, Kind
from banyan.tree import Leaf, Tree
from services.rollout.growth import plan_log, view_digest
from services.rollout.growth.grower import Grower
from services.rollout.growth.spec import GrowSpec
from services.rollout.growth.step import Call, GrowthStep
from tests.rollout.growing import IID, engine
from tests.rollout.growth.test_actions import SCRIPT, acting, answer

POLICIES: dict[str, Any] = {
    "iid": (IID, {"width": 4}),
    "turns": ("methods.generate.turns:TurnForks", {"starts": 2, "branches": 2, "depth": 1}),
    "rounds": ("methods.generate.rounds:Rounds", {"start": 3}),
    "dars": ("methods.generate.dars:Dars", {"width": 3, "max_width": 6}),
}


def ending(call: Call) -> Ending:
    return Ending(call.action, Reason.ENVIRONMENT_DIVERGED, "otherwise", b"proof")


class Growth:
    """A tree some of whose actions get no answer: those whose ids end in few bits."""

    def __init__(
        self, assignment: GrowSpec, tree: Tree | None = None, leaves: Any = None, share: int = 2
    ) -> None:
        self.engine, self.share = engine(SCRIPT), share
        self.grower = Grower(
            assignment,
            tree or Tree(assignment.tree_id),
            self.engine.tokenizer,
            "node",
            leaves=dict(leaves or {}),
        )
        self.called, self.endings = list[bytes](), dict[Leaf, Ending]()
        self.published: dict[Leaf, str] = {}
        self.records: list[Any] = []
        self.grown: tuple[Leaf, ...] | None = None

    def run(self, rng: random.Random, most: int = 10_000) -> "Growth":
        step, waiting = self.grower.start(), list[Call]()
        for _ in range(most):
            waiting += self._take(step)
            if step.grown is not None:
                break
            if waiting and rng.random() < 0.6:
                step = self._answer(waiting.pop(rng.randrange(len(waiting))))
            elif self.grower.waits and not waiting:
                step = self.grower.unscored() if self.grower.lacks_scores else self._last()
            else:
                step = self.grower.ended(self.engine.step())
        return self

    def lost(self, call: Call) -> bool:
        return call.action[-1] % self.share == 0

    def _last(self) -> GrowthStep:
        return self.grower.budget_withheld()

    def _answer(self, call: Call) -> GrowthStep:
        if self.lost(call):
            return self.grower.unanswered(call.action, ending(call))
        return self.grower.answered(call.action, answer(call))

    def _take(self, step: GrowthStep) -> tuple[Call, ...]:
        for request in step.requests:
            self.engine.submit(request)
        self.called += [call.action for call in step.calls]
        assert step.endings.keys() <= {mark.leaf for mark in step.leaves}
        self.endings |= step.endings
        self.published |= {mark.leaf: "" for mark in step.leaves}
        self.records += step.plans
        self.grown = step.grown
        return step.calls


def check(growth: Growth) -> None:
    """Every path ends as a leaf, and those of actions without an answer with their proof."""
    assert growth.grown is not None and set(growth.grown) == set(growth.grower.leaves)
    tree = growth.grower.tree
    ends = {
        Leaf(s.id, len(s))
        for s in tree
        if s.kind is not Kind.PROMPT and not tree.children.get(s.id)
    }
    assert set(growth.grown) == ends
    cut = {leaf for leaf in ends if tree.segments[leaf.segment].finish is Finish.TOOL_CALL}
    assert growth.endings.keys() <= cut
    assert len(growth.called) == len(set(growth.called)), "an action is asked for once"


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.integers(1, 40))
def test_the_others_go_on_whatever_the_order_and_the_interruption(
    policy: str, seed: int, cut: int
) -> None:
    made = acting(turns=2, seed=seed % 1000, policy=POLICIES[policy])
    rng = random.Random(seed)
    whole = Growth(made).run(rng)
    check(whole)
    part = Growth(made).run(rng, most=cut)
    resumed = Growth(made, part.grower.tree, part.published).run(rng)
    check(resumed)
    assert not set(resumed.called) & {leaf.segment for leaf in part.endings}
    assert {*part.endings, *resumed.endings} == set(whole.endings)
    assert set(resumed.grower.tree.segments) == set(whole.grower.tree.segments)


def test_plans_are_made_again_from_their_log() -> None:
    ended = 0
    for seed in range(4):
        made = acting(turns=2, seed=seed, policy=POLICIES["turns"])
        growth = Growth(made).run(random.Random(seed))
        views = plan_log.views(made, growth.grower.tree, growth.records)
        digests = [view_digest.digest(view) for view in views]
        assert digests == [record.view_digest for record in growth.records]
        ended += len(growth.endings)
    assert ended


class Calls:
    """A policy without a process, which names all calls in each plan."""

    acts = True
    width = 2

    def plan(self, view: Any, room: Any, rng: Any) -> Plan:
        root = Branch(view.root.id, len(view.root), 0)
        calls = tuple(Branch(s.id, len(s), 0) for s in view.tree if s.finish is Finish.TOOL_CALL)
        waits = view.in_flight or view.acting
        done = bool(calls) and not waits
        return Plan((Expansion(root, view.sampling),), calls=calls, done=done)


def test_a_policy_that_repeats_its_calls_is_not_asked_twice() -> None:
    made = acting(turns=1, policy=(f"{__name__}:Calls", {}))
    growth = Growth(made, share=1).run(random.Random(0))
    [leaf] = growth.endings
    assert growth.grown == (leaf,) and growth.called == [leaf.segment]
    again = Growth(made, growth.grower.tree, {leaf: ""}, share=1).run(random.Random(0))
    assert again.grown == (leaf,) and not again.called and not again.endings


def test_an_ending_nobody_waits_for_changes_nothing() -> None:
    growth = Growth(acting(turns=1), share=1 << 30).run(random.Random(0))
    action = next(s for s in growth.grower.tree if s.finish is Finish.TOOL_CALL)
    step = growth.grower.unanswered(action.id, ending(Call(action.id, "")))
    assert step == GrowthStep() and Leaf(action.id, len(action)) not in growth.grower.leaves
