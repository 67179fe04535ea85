"""Plans of tree policies, and the refusal of those that no tree can hold."""

from dataclasses import dataclass
from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.plugins import Branch, Expansion, LeafMark, Plan
from banyan.recipe import Recipe
from banyan.recipe_loader.load import resolve
from banyan.segment import Sampling
from banyan.tree import Leaf
from services.rollout.growth import return_reasons
from services.rollout.simulation.simulate import simulate


@dataclass(frozen=True)
class Own:
    """A tree policy of four samples of eight tokens; `wrong` names the fault of its plans."""

    wrong: str = ""

    def plan(self, view: Any, room: Any, rng: Any) -> Any:
        root, sampling = view.root, Sampling(max_new_tokens=8)
        place = root.id, len(root)
        if self.wrong == "raises":
            raise RuntimeError("boom")
        if self.wrong == "no plan":
            return 42
        if self.wrong == "no leaf":
            return Plan(done=True)
        if self.wrong == "the prompt":
            return Plan(leaves=(LeafMark(Leaf(*place), "stop"),), done=True)
        branches = [Branch(*place, i) for i in range(4)]
        change = {
            "parent": Expansion(Branch(b"x" * 32, 0, 0), sampling),
            "fork": Expansion(Branch(root.id, len(root) + 1, 0), sampling),
            "ordinal": Expansion(Branch(*place, -1), sampling),
            "length": Expansion(Branch(*place, 0), Sampling(max_new_tokens=-5)),
            "long": Expansion(Branch(*place, 0), Sampling(max_new_tokens=9)),
            "long, forced": Expansion(Branch(*place, 0), sampling, forced=(5,)),
            "a float": Expansion(Branch(*place, 0), Sampling(max_new_tokens=1e9)),  # type: ignore[arg-type]
        }
        odd = {
            "prunes": {"prunes": 5},
            "done": {"done": "no"},
            "seed": {
                "expansions": (Expansion(Branch(*place, 0), Sampling(max_new_tokens=8, seed=-1)),)
            },
            "a prune": {"prunes": ((Branch(*place, 0), "x"),)},
            "dropped": {"dropped": ("a",)},
            "expansions": {"expansions": ("a", 3)},
            "a reason": {"leaves": (LeafMark(Leaf(*place), 5),)},  # type: ignore[arg-type]
            "temperature": {
                "expansions": (
                    Expansion(Branch(*place, 0), Sampling(float("nan"), max_new_tokens=8)),
                )
            },
            "top_p": {
                "expansions": (
                    Expansion(Branch(*place, 0), Sampling(top_p=-1.0, max_new_tokens=8)),
                )
            },
            "forced": {"expansions": (Expansion(Branch(*place, 0), sampling, forced=(-3,)),)},
            "no sampling": {"expansions": (Expansion(Branch(*place, 0), None),)},  # type: ignore[arg-type]
            "a name": {"expansions": (Expansion(Branch("x", 0, 0), sampling),)},  # type: ignore[arg-type]
        }
        if self.wrong in odd:
            return Plan(**odd[self.wrong])  # type: ignore[arg-type]
        if self.wrong in change:
            return Plan((change[self.wrong],))
        there = [view.tree.at(b.parent, b.fork, b.ordinal) for b in branches]
        if None in there:
            return Plan(
                tuple(
                    Expansion(b, sampling)
                    for b, s in zip(branches, there, strict=True)
                    if s is None
                )
            )
        beyond = 9 if self.wrong == "beyond" else 0
        return Plan(
            leaves=tuple(LeafMark(Leaf(s.id, len(s) + beyond), "length") for s in there), done=True
        )


def recipe(wrong: str) -> Recipe:
    return resolve(
        {
            "name": "own",
            "model": "none",
            "task": {"name": "arithmetic"},
            "generate": {
                "policy": f"{__name__}:Own",
                "settings": {"wrong": wrong},
                "max_new_tokens": 8,
            },
            "resources": {"engine": "scripted"},
        }
    )


def test_a_good_plan_is_carried_out() -> None:
    counts = simulate(recipe(""))
    assert (counts["leaves"], counts["sampled_tokens"], counts["saved"]) == (4, 32, 0.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("raises", r"RuntimeError: boom \(.*test_plan_checks.py, line \d+\)"),
        ("no plan", "answers with a Plan, this one with 42"),
        ("no leaf", "is done and has no leaf"),
        ("the prompt", "a leaf ends in the prompt"),
        ("parent", "a branch leaves segment 787878787878, which the tree does not have"),
        ("fork", r"a branch leaves behind \d+ tokens of segment .*, which has \d+"),
        ("ordinal", "ordinal -1"),
        ("length", "asks for -5 new tokens"),
        ("a float", "asks for 1000000000.0 new tokens"),
        ("long", "asks for 9 new tokens behind 0 tokens of its path; a path holds 8"),
        (
            "long, forced",
            "asks for 8 new tokens behind 0 tokens of its path and 1 forced ones; a path holds 8",
        ),
        ("prunes", "prunes are a tuple, got 5"),
        ("a prune", "prunes are pairs of a Branch and the tokens to keep of it, got"),
        ("dropped", "dropped are each of kind Leaf, got 'a'"),
        ("expansions", "expansions are each of kind Expansion, got 'a'"),
        ("a reason", "a mark is a Leaf with a reason in words, got .*5"),
        ("temperature", "asks for temperature nan; it must lie in 0..100"),
        ("top_p", "asks for top_p -1.0; it must be above 0"),
        ("forced", r"has forced \(-3,\); they are a tuple of token ids"),
        ("no sampling", "asks for sampling None; it must be a Sampling"),
        ("a name", "a branch leaves segment 'x'; a segment is named by its id, in bytes"),
        ("done", "done is true or false, got 'no'"),
        ("seed", "asks for seed -1"),
        ("beyond", "a leaf ends behind 17 tokens of segment .*, which has 8; it must be 1 to 8"),
    ],
)
def test_a_bad_plan_is_refused_by_the_name_of_its_policy(wrong: str, message: str) -> None:
    with pytest.raises(
        InvalidInput, match=f"generate.policy {__name__}:Own: .*{message}"
    ) as caught:
        simulate(recipe(wrong))
    assert return_reasons.failed(caught.value).startswith("UNUSABLE: generate.policy")
