"""Paths that act: they stop at a call, are answered, and go on; any order, any interruption."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.digest import blake
from banyan.environments.observation import Effect, Observation, ToolOutcome
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput
from banyan.plugins import Branch, Plan
from banyan.segment import Finish, Kind
from banyan.tree import Leaf, Tree
from methods.environment.calculator import Calculator
from methods.generate.turns import TurnForks
from services.rollout.engines.turns import Turns
from services.rollout.growth.grower import Grower
from services.rollout.growth.plan_checks import checked_plan
from services.rollout.growth.segments import ToolAnswer
from services.rollout.growth.spec import GrowSpec
from services.rollout.growth.step import Call, open_calls
from tests.methods.advantages.planting import Twig, chain, planted
from tests.rollout.growing import IID, engine, spec, survivors

# "=6*7?" or "=1*1?", an answer, then a or b, which end, or another call.
CHAIN: dict[str, Any] = {
    "": {"=": 1.0},
    "=": {"6": 0.5, "1": 0.5},
    "=6": {"*": 1.0},
    "=6*": {"7": 1.0},
    "=6*7": {"?": 1.0},
    "=1": {"*": 1.0},
    "=1*": {"1": 1.0},
    "=1*1": {"?": 1.0},
    " ": {"a": 0.4, "b": 0.3, "=": 0.3},
    "a": {"": 1.0},
    "b": {"": 1.0},
}
CALCULATOR = Calculator(begin="=", end="?")
SCRIPT: dict[str, Any] = {"chain": CHAIN}


def acting(
    turns: int = 2,
    max_tokens: int = 40,
    width: int = 4,
    seed: int = 5,
    policy: tuple[str, dict[str, Any]] | None = None,
) -> GrowSpec:
    name, values = policy or (IID, {"width": width})
    made = spec(name, values, max_tokens, seed, turns=Turns(turns, "?"))
    return replace(made, sampling=replace(made.sampling, stop=("?",)))


def answer(call: Call, done: bool = False) -> ToolAnswer:
    """Return what a verifier says, without a proof."""
    said = CALCULATOR.step(b"", call.text)
    seen = Observation(
        environment="calculator",
        version="1",
        settings=blake(b"{}"),
        action=call.action,
        answer=blake(said.text.encode()),
        shown=blake(said.text.encode()),
        outcome=ToolOutcome.OK,
        before=blake(b""),
        after=blake(b""),
        effect=Effect.NONE,
        done=done,
    )
    return ToolAnswer(Receipt(seen, b"", call.text), said.text)


def grow(
    assignment: GrowSpec,
    tree: Tree | None = None,
    rng: random.Random | None = None,
    most: int = 10_000,
    done: bool = False,
) -> tuple[Grower, bool]:
    """Grow a tree whose calls are answered in any order, some of them late."""
    scripted = engine(SCRIPT)
    grower = Grower(assignment, tree or Tree(assignment.tree_id), scripted.tokenizer, "node")
    step, waiting, rng = grower.start(), list[Call](), rng or random.Random(0)
    for _ in range(most):
        for request in step.requests:
            scripted.submit(request)
        waiting += step.calls
        if step.grown is not None:
            return grower, True
        if waiting and rng.random() < 0.6:
            call = waiting.pop(rng.randrange(len(waiting)))
            step = grower.answered(call.action, answer(call, done))
        else:
            step = grower.ended(scripted.step())
    return grower, False


def texts(grower: Grower) -> list[str]:
    return sorted(
        grower.tokenizer.decode(
            grower.tree.prefix_tokens(leaf.segment, leaf.end)[len(grower.tree.root or ()) :]
        )
        for leaf in grower.leaves
    )


def test_a_path_stops_at_a_call_is_answered_and_goes_on() -> None:
    grower, over = grow(acting(turns=1, width=8))
    assert over and len(grower.leaves) == 8
    for text in texts(grower):
        call, answered, rest = text.split(" ")
        assert call + answered in ("=6*7?42", "=1*1?1"), text
        assert rest in ("a", "b", "=6*7?", "=1*1?")
    tools = [segment for segment in grower.tree if segment.kind is Kind.TOOL]
    assert {(s.text, s.finish, s.ordinal) for s in tools} <= {
        ("42", Finish.BOUNDARY, 0),
        ("1", Finish.BOUNDARY, 0),
    }
    for tool in tools:
        action = grower.tree.segments[tool.parent]
        assert action.finish is Finish.TOOL_CALL and tool.fork == len(action)
        assert tool.receipt is not None and not len(tool.logprobs_T)


def test_the_completion_is_what_stands_behind_the_last_answer() -> None:
    grower, _ = grow(acting(turns=1, width=8))
    for leaf in grower.leaves:
        assert grower.completion(leaf) in ("a", "b", "=6*7?", "=1*1?")


def test_turns_and_tokens_that_are_used_up_end_a_path() -> None:
    grower, _ = grow(acting(turns=2, width=16))
    for leaf, reason in grower.leaves.items():
        last = grower.tree.segments[leaf.segment]
        taken = Turns(2, "?").taken(grower.tree, Branch(leaf.segment, leaf.end, 0))
        assert taken <= 2
        if grower.completion(leaf).endswith("?"):
            assert (last.finish, reason, taken) == (Finish.LENGTH, "length", 2)
        else:
            assert (last.finish, reason) == (Finish.STOP, "stop")
    full, _ = grow(acting(turns=9, max_tokens=5, width=4))
    assert {full.tree.segments[leaf.segment].finish for leaf in full.leaves} == {Finish.LENGTH}
    assert not [s for s in full.tree if s.kind is Kind.TOOL], "no token is left behind an answer"


def test_tool_tokens_use_up_no_budget_of_the_path() -> None:
    grower, _ = grow(acting(turns=9, max_tokens=12, width=16))
    for leaf in grower.leaves:
        assert grower.tree.answer_length(leaf.segment, leaf.end) <= 12
    assert any(
        grower.tree.prefix_length(leaf.segment, leaf.end) - len(grower.tree.root or ()) > 12
        for leaf in grower.leaves
    )


def test_an_episode_that_is_over_ends_its_path_with_the_answer() -> None:
    grower, over = grow(acting(width=4), done=True)
    assert over and set(grower.leaves.values()) == {"done"}
    for leaf in grower.leaves:
        assert grower.tree.segments[leaf.segment].kind is Kind.TOOL
        assert grower.completion(leaf) == ""


def test_an_answer_nobody_waits_for_changes_nothing() -> None:
    grower, _ = grow(acting(turns=1))
    action = next(s for s in grower.tree if s.finish is Finish.TOOL_CALL)
    before = set(grower.tree.segments)
    step = grower.answered(action.id, answer(Call(action.id, "=6*7?")))
    assert not step.requests and not step.segments and set(grower.tree.segments) == before


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), turns=st.integers(1, 3), cut=st.integers(1, 60))
def test_any_order_and_any_interruption_give_the_same_tree(seed: int, turns: int, cut: int) -> None:
    whole, _ = grow(acting(turns, seed=seed % 1000))
    rng = random.Random(seed)
    part, _ = grow(acting(turns, seed=seed % 1000), rng=rng, most=cut)
    resumed, _ = grow(acting(turns, seed=seed % 1000), tree=survivors(part.tree, rng), rng=rng)
    assert set(resumed.tree.segments) == set(whole.tree.segments)
    assert texts(resumed) == texts(whole)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    starts=st.integers(1, 3),
    branches=st.integers(1, 3),
    depth=st.integers(0, 2),
    cut=st.integers(1, 40),
)
def test_paths_fork_behind_answers_whatever_the_order_and_the_interruption(
    seed: int, starts: int, branches: int, depth: int, cut: int
) -> None:
    policy = {"starts": starts, "branches": branches, "depth": depth}
    made = acting(turns=3, seed=seed % 1000, policy=("methods.generate.turns:TurnForks", policy))
    whole, over = grow(made)
    assert over
    for segment in whole.tree:
        forks = [child.ordinal for child in whole.tree.children.get(segment.id, ())]
        if segment.kind is Kind.TOOL:
            before = Turns(3, "?").taken(whole.tree, Branch(segment.parent, segment.fork, 0))
            assert forks == list(range(branches if before < depth else 1))
        elif segment.kind is Kind.PROMPT:
            assert forks == list(range(starts))
        else:
            assert forks in ([], [0])
    rng = random.Random(seed)
    part, _ = grow(made, rng=rng, most=cut)
    resumed, _ = grow(made, tree=survivors(part.tree, rng), rng=rng)
    assert set(resumed.tree.segments) == set(whole.tree.segments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"starts": 0}, "starts must be a whole number"),
        ({"branches": 1.5}, "branches must be a whole number"),
        ({"depth": -1}, "depth must be a whole number"),
        ({"starts": 64, "branches": 64, "depth": 2}, "have 262144 leaves"),
    ],
)
def test_forks_are_bounded(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TurnForks(**settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Branch(b"x" * 32, 5, 0), "no action ends there"),
        ("root", "no action ends there"),
        ("ordinal", "first one behind its action"),
        ("fork", "first one behind its action"),
    ],
)
def test_a_plan_calls_ends_of_actions_alone(call: Any, message: str) -> None:
    grower, _ = grow(acting(turns=1))
    tree = grower.tree
    action = next(s for s in tree if s.finish is Finish.TOOL_CALL)
    assert tree.root is not None
    branch = {
        "root": Branch(tree.root.id, len(tree.root), 0),
        "ordinal": Branch(action.id, len(action), 1),
        "fork": Branch(action.id, 1, 0),
    }.get(call, call)
    with pytest.raises(InvalidInput, match=message):
        checked_plan(lambda: Plan(calls=(branch,)), tree, "policy", 40)


def test_lengths_of_a_tree_without_answers_are_as_before() -> None:
    grower, _ = grow(acting(turns=1, max_tokens=4))
    for segment in grower.tree:
        if segment.kind is Kind.POLICY:
            place = Leaf(segment.id, len(segment))
            assert grower.tree.answer_length(*_pair(place)) == len(segment)
            assert grower.tree.context_length(*_pair(place)) == len(grower.tree.root or ())


def _pair(leaf: Leaf) -> tuple[bytes, int]:
    return leaf.segment, leaf.end


def test_a_call_that_has_its_answer_is_not_made_again() -> None:
    """A policy may name all ends of actions in each plan."""
    acts = Finish.TOOL_CALL
    said = planted([chain(Twig(finish=acts), Twig(kind="tool")), Twig(finish=acts)])
    answered, waits = (Branch(said.segments[n].id, 1, 0) for n in (1, 3))
    assert open_calls([answered, waits], (), said.view.tree) == ([waits], [])
