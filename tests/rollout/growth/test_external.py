"""Paths that changed something outside go on alone: a plan that forks them is refused."""

import random
from dataclasses import dataclass, replace

import pytest

from banyan.environments.observation import Effect
from banyan.errors import InvalidInput
from banyan.plugins import Branch, Expansion
from banyan.segment import Kind, Sampling
from banyan.tree import Tree
from methods.generate.coroutine_policy import Growing, Growth
from services.rollout.growth.grower import Grower
from services.rollout.growth.segments import ToolAnswer
from services.rollout.growth.spec import GrowSpec
from services.rollout.growth.step import Call
from tests.rollout.growing import IID, engine
from tests.rollout.growth.test_actions import SCRIPT, acting, answer

TURNS = ("methods.generate.turns:TurnForks", {"starts": 3, "branches": 2, "depth": 2})


def outside(call: Call, every: bool) -> ToolAnswer:
    """Return an answer: that to 1*1, or every one, changed something outside."""
    said = answer(call)
    if "1*1" not in call.text and not every:
        return said
    seen = replace(said.receipt.observation, effect=Effect.EXTERNAL)
    return ToolAnswer(replace(said.receipt, observation=seen), said.text)


def grow(
    assignment: GrowSpec, tree: Tree | None = None, most: int = 10_000, every: bool = False
) -> Tree:
    scripted = engine(SCRIPT)
    grower = Grower(assignment, tree or Tree(assignment.tree_id), scripted.tokenizer, "node")
    step, waiting, rng = grower.start(), list[Call](), random.Random(0)
    for _ in range(most):
        for request in step.requests:
            scripted.submit(request)
        waiting += step.calls
        if step.grown is not None:
            break
        if waiting and rng.random() < 0.6:
            call = waiting.pop()
            step = grower.answered(call.action, outside(call, every))
        else:
            step = grower.ended(scripted.step())
    return grower.tree


def widths(tree: Tree) -> dict[bool, set[int]]:
    """Return the numbers of paths that go on behind answers, by whether such may fork."""
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for segment in tree:
        if segment.kind is Kind.TOOL:
            found[tree.forks_at(segment.id)].add(len(tree.children.get(segment.id, ())))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_turns_fork_only_paths_that_changed_nothing_outside(seed: int) -> None:
    assignment = acting(turns=3, max_tokens=60, seed=seed, policy=TURNS)
    tree = grow(assignment)
    assert widths(tree)[False] <= {0, 1}
    assert grow(assignment, grow(assignment, most=20)).segments.keys() == tree.segments.keys(), (
        "a tree that is resumed goes on likewise"
    )


def test_both_kinds_are_there() -> None:
    found = [widths(grow(acting(3, 60, seed=seed, policy=TURNS))) for seed in range(5)]
    assert any(1 in each[False] for each in found) and any(2 in each[True] for each in found)


def test_paths_that_do_not_fork_may_act_outside() -> None:
    tree = grow(acting(policy=(IID, {"width": 8})))
    assert any(not tree.forks_at(segment.id) for segment in tree)


@dataclass(frozen=True)
class Forks(Growing):
    """A tree policy that forks at a place of a path that changed something outside."""

    where: str = "behind"
    acts = True

    async def grow(self, growth: Growth) -> None:
        run = await growth.leg(Branch(*growth.root, 0))
        said = await growth.act(run)
        onward = await growth.leg(Branch(said.id, len(said), 0), len(run))
        places = {
            "behind": Branch(said.id, len(said), 1),
            "inside the answer": Branch(said.id, 1, 0),
            "inside what follows": Branch(onward.last.id, 0, 0),
            "before the action": Branch(run.pieces[0].id, 1, 0),
        }
        growth.end(await growth.run(Expansion(places[self.where], Sampling(max_new_tokens=1))))


def forking(where: str) -> GrowSpec:
    return acting(max_tokens=60, seed=1, policy=(f"{__name__}:Forks", {"where": where}))


@pytest.mark.parametrize("where", ["behind", "inside the answer", "inside what follows"])
def test_a_plan_that_forks_what_has_no_copy_is_refused(where: str) -> None:
    with pytest.raises(InvalidInput, match="forks a path that changed something outside"):
        grow(forking(where), every=True)


def test_a_fork_before_the_action_is_another_path() -> None:
    tree = grow(forking("before the action"), every=True)
    assert len(tree.children[next(iter(tree)).id]) == 1 and len(tree) > 3
