"""Facts that estimators get in a run, such as parts of scores, and recipes that lack one."""

from typing import Any

import pytest

from banyan.credit import estimate as credit
from banyan.errors import InvalidInput
from banyan.plugins import GroupTrees
from banyan.recipe_loader.load import resolve
from banyan.v1 import tree_pb2
from banyan.wire.segments import facts_from_wire
from methods.advantages.portool import PorTool
from services.learner.data import from_store
from services.learner.training.reference import penalised
from tests.learner.in_memory_learner import grown


def stored(format_score: bool = True) -> tree_pb2.Tree:
    """Return a tree of four leaves, the last one right."""
    (tree,) = grown(3, b"p")
    for number, scored in enumerate(tree.scores if format_score else ()):
        scored.score.parts["format"] = number / 4
    return tree


def test_parts_of_a_score_are_attributes_of_the_segment_that_it_ends() -> None:
    facts = facts_from_wire(stored())
    ends = [scored.leaf.segment for scored in stored().scores]
    assert [facts.of_segment(segment, "format") for segment in ends] == [0.0, 0.25, 0.5, 0.75]
    inside = stored()
    for leaf in (inside.leaves[0], inside.scores[0].leaf):
        leaf.end = 2  # the path ends within the segment, whose other tokens nobody scored
    facts = facts_from_wire(inside)
    assert (
        facts.of_segment(ends[0], "format") is None and facts.of_segment(ends[1], "format") == 0.25
    )


def test_portool_gets_its_format_score_in_a_run() -> None:
    def advantages(tree: tree_pb2.Tree, **settings: Any) -> list[float]:
        view = credit.view_of(from_store.scored_tree(tree), lambda _tree, _leaf: False)[0]
        estimated = PorTool(**settings).estimate(GroupTrees("g", [view]))
        return [round(float(value), 4) for value in estimated.leaf_G_L[0]]

    with_format = advantages(stored(), format="format", trajectory=0.0)
    assert with_format != advantages(stored(), trajectory=0.0) and len(set(with_format)) == 4
    with pytest.raises(InvalidInput, match="portool needs 'format' on every step"):
        advantages(stored(format_score=False), format="format")


def test_a_penalty_leaves_what_is_known_of_a_tree(tiny_llama: Any) -> None:
    from services.learner.losses.kl import Kl
    from services.learner.model.load import prepare

    tree = from_store.scored_tree(stored())
    priced = penalised(tree, prepare(tiny_llama(0)), Kl(coef=0.1, where="reward"), 100)
    assert priced.facts == tree.facts and priced.rewards != tree.rewards


FINE: list[dict[str, Any]] = [
    {"advantage": "gigpo"},
    {"advantage": "hgpo"},
    {"advantage": "portool"},
    {"advantage": "mars2"},
]


@pytest.mark.parametrize("optimise", FINE, ids=lambda o: o["advantage"])
def test_what_the_store_knows_is_enough(optimise: dict[str, Any]) -> None:
    assert resolve(_recipe(optimise)).optimise.advantage == optimise["advantage"]


@pytest.mark.parametrize(
    ("optimise", "more", "lacks"),
    [
        (
            {"advantage": "mars2"},
            {"generate": {"policy": "treepo"}},
            "a reward at the end of every step",
        ),
        (
            {"advantage": "mars2", "advantage_settings": {"agent": "a"}},
            {},
            "the attribute 'agent' on every segment",
        ),
        (
            {"advantage": "portool", "advantage_settings": {"format": "form"}},
            {},
            "the attribute 'form' on every segment",
        ),
        (
            {"advantage": "sage-skill"},
            {},
            "a reward of its own at a place inside each path and the part 'used' of every leaf's "
            "score",
        ),
        (
            {"advantage": "sage-skill"},
            {"filter": [{"name": "here:reward"}]},
            "a reward of its own at a place inside each path",
        ),
    ],
)
def test_a_recipe_whose_estimator_lacks_a_fact_is_refused_by_name(
    optimise: dict[str, Any], more: dict[str, Any], lacks: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        resolve(_recipe(optimise) | more)
    assert f"optimise.advantage {optimise['advantage']} needs {lacks}, which neither" in str(
        refused.value
    )


def test_parts_that_a_scorer_names_are_known() -> None:
    optimise = {"advantage": "portool", "advantage_settings": {"format": "majority_ratio"}}
    vote = {"filter": [{"name": "majority"}], "eval": {"filter": [{"name": "number"}]}}
    assert resolve(_recipe(optimise) | vote).filter[0].name == "majority"
    with pytest.raises(InvalidInput, match="majority_ratio"):
        resolve(_recipe(optimise) | vote | {"generate": {"policy": "treepo"}})


def test_one_leaf_of_a_prompt_is_refused_where_leaves_are_compared() -> None:
    one = {"generate": {"policy": "iid", "settings": {"width": 1}}}
    with pytest.raises(InvalidInput, match=r"rloo compares the leaves of a prompt, .* grows 1"):
        resolve(_recipe({"advantage": "rloo"}) | one)
    for advantage in ("reinforce++", "otr"):
        assert resolve(_recipe({"advantage": advantage}) | one).generate.settings == {"width": 1}
    two = {"generate": one["generate"] | {"trees": 2}}
    assert resolve(_recipe({"advantage": "rloo"}) | two).generate.trees == 2


class Unsaid:
    """A policy that does not say how many leaves it grows."""

    def plan(self, view: Any, room: Any, rng: Any) -> Any:
        raise NotImplementedError


def test_one_leaf_is_not_refused_of_what_is_not_known() -> None:
    one = {"generate": {"policy": "iid", "settings": {"width": 1}}}
    users = {"advantage": "methods.advantages.rloo:Rloo"}
    assert resolve(_recipe(users) | one).generate.settings == {"width": 1}
    unsaid = {"generate": {"policy": "tests.learner.data.test_facts:Unsaid"}}
    assert resolve(_recipe({"advantage": "rloo"}) | unsaid).generate.trees == 1


def test_an_engine_without_entropies_is_refused() -> None:
    with pytest.raises(InvalidInput, match="echo needs entropies"):
        resolve(_recipe({"advantage": "echo"}) | {"resources": {"engine": "vllm"}})


def test_steps_are_masked_by_entropies_alone() -> None:
    masked = {"entropy_quantile": 0.2}
    assert resolve(_recipe(masked)).optimise.entropy_quantile == 0.2
    with pytest.raises(
        InvalidInput,
        match=r"entropy_quantile 0.2 needs entropies, which resources.engine vllm does not provide",
    ):
        resolve(_recipe(masked) | {"resources": {"engine": "vllm"}})
    with pytest.raises(
        InvalidInput, match=r"entropy_quantile 0.2 masks advantages, and loss dpo compares pairs"
    ):
        resolve(_recipe(masked | {"loss": "dpo"}))


def _recipe(optimise: dict[str, Any]) -> dict[str, Any]:
    return {"name": "r", "model": "m", "task": {"name": "arithmetic"}, "optimise": optimise}
