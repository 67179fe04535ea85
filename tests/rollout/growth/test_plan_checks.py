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


def _odd_plans(place: tuple[bytes, int]) -> dict[str, dict[str, Any]]:
    """Return the fields of bad plans, by their faults. A `place` is the end of the prompt."""
    (root_id, end), branch = place, Branch(*place, 0)
    eight = Sampling(max_new_tokens=8)

    def expansion(branch: Any = branch, sampling: Any = eight, **more: Any) -> dict[str, Any]:
        return {"expansions": (Expansion(branch, sampling, **more),)}

    def sampled(**sampling: Any) -> dict[str, Any]:
        return expansion(sampling=Sampling(**{"max_new_tokens": 8, **sampling}))

    reason: Any = 5
    return {
        "no leaf": {"done": True},
        "the prompt": {"leaves": (LeafMark(Leaf(*place), "stop"),), "done": True},
        "parent": expansion(Branch(b"x" * 32, 0, 0)),
        "fork": expansion(Branch(root_id, end + 1, 0)),
        "ordinal": expansion(Branch(*place, -1)),
        "length": sampled(max_new_tokens=-5),
        "long": sampled(max_new_tokens=9),
        "long, forced": expansion(forced=(5,)),
        "a float": sampled(max_new_tokens=1e9),
        "prunes": {"prunes": 5},
        "done": {"done": "no"},
        "seed": sampled(seed=-1),
        "a prune": {"prunes": ((branch, "x"),)},
        "dropped": {"dropped": ("a",)},
        "expansions": {"expansions": ("a", 3)},
        "a reason": {"leaves": (LeafMark(Leaf(*place), reason),)},
        "a half reason": {"leaves": (LeafMark(Leaf(*place), "half \ud800"),)},
        "a half stop": sampled(stop=("half \ud800",)),
        "temperature": sampled(temperature=float("nan")),
        "top_p": sampled(top_p=-1.0),
        "forced": expansion(forced=(-3,)),
        "no sampling": expansion(sampling=None),
        "a name": expansion(Branch("x", 0, 0)),  # type: ignore[arg-type]
    }


@dataclass(frozen=True)
class Own:
    """A tree policy of four samples of eight tokens; `wrong` names the fault of its plans."""

    wrong: str = ""

    def plan(self, view: Any, room: Any, rng: Any) -> Any:
        place = (view.root.id, len(view.root))
        odd = _odd_plans(place)
        if self.wrong == "raises":
            raise RuntimeError("boom")
        if self.wrong == "no plan":
            return 42
        if self.wrong in odd:
            return Plan(**odd[self.wrong])
        branches = [Branch(*place, ordinal) for ordinal in range(4)]
        segments = [view.tree.at(b.parent, b.fork, b.ordinal) for b in branches]
        if None in segments:
            sampling = Sampling(max_new_tokens=8)
            pairs = zip(branches, segments, strict=True)
            return Plan(tuple(Expansion(b, sampling) for b, segment in pairs if segment is None))
        beyond = 9 if self.wrong == "beyond" else 0
        ends = [Leaf(segment.id, len(segment) + beyond) for segment in segments]
        return Plan(leaves=tuple(LeafMark(end, "length") for end in ends), done=True)


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
        ("a half reason", "a mark has reason 'half .*ud800'; a lone surrogate"),
        ("a half stop", "asks for stop .*ud800.*; a lone surrogate"),
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
