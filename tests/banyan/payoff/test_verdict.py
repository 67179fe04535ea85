"""Verdicts on tree policies, over made-up figures at and beside each threshold."""

import pytest

from banyan.payoff import verdict
from banyan.payoff.shape import Setting, Shape, shape_of
from banyan.payoff.tokens import TreeTokens, total
from banyan.recipe_loader.load import resolve

SEGMENT = Setting(name="segment", value=8)


def shape(**changes: object) -> Shape:
    """Return a shape that pays: eight leaves of 24 tokens, three forks of 8 tokens above each."""
    base = {"policy": "treepo", "width": 8, "max_new_tokens": 24, "advantage": "treepo"}
    return Shape(**{**base, "stretch": SEGMENT, **changes})  # type: ignore[arg-type]


def tokens(saved: float = 0.35, forks: int = 6) -> TreeTokens:
    return TreeTokens(leaves=8, forks=forks, sampled=round(1000 * (1 - saved)), paths=1000)


def names(of: Shape, grown: TreeTokens) -> list[str]:
    return [reason.name for reason in verdict.verdicts(of, grown)]


def test_trees_that_share_have_no_verdict() -> None:
    assert names(shape(), tokens()) == [] == verdict.notes(shape(), tokens())


def test_independent_samples_have_none_whatever_their_figures() -> None:
    assert names(shape(judged=False, max_new_tokens=4), tokens(-1.0, forks=0)) == []


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        (verdict.LEAST_SAVED, []),
        (verdict.LEAST_SAVED - 0.001, ["nothing-saved"]),
        (0.0, ["nothing-saved"]),
        (-0.25, ["nothing-saved"]),
    ],
)
def test_a_small_saving_does_not_pay(saved: float, expected: list[str]) -> None:
    assert names(shape(), tokens(saved)) == expected


def test_a_saving_is_said_in_words() -> None:
    (less,) = verdict.verdicts(shape(), tokens(0.02))
    (more,) = verdict.verdicts(shape(), tokens(-0.375))
    assert "sample as many tokens as independent" in verdict.saving(0.0)
    assert "sample 2.0% fewer tokens" in less.words and "less than 5%" in less.words
    assert "sample 37.5% more tokens" in more.words


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (verdict.SHORT_ANSWER, "no tree recipe has ended above"),
        (verdict.SHORT_ANSWER + 1, "not shown"),
        (verdict.LONG_ANSWER - 1, "not shown"),
        (verdict.LONG_ANSWER, "have learnt more"),
    ],
)
def test_what_is_known_depends_on_the_length_of_answers(length: int, words: str) -> None:
    known = verdict.known(length)
    assert known.startswith(f"answers of {length} tokens: ") and words in known


@pytest.mark.parametrize(
    ("most", "expected"),
    [(verdict.SHORT_ANSWER, ["short-answers"]), (verdict.SHORT_ANSWER + 1, [])],
)
def test_no_tree_has_paid_on_short_answers(most: int, expected: list[str]) -> None:
    assert names(shape(max_new_tokens=most), tokens()) == expected


def test_without_a_fork_there_is_one_verdict_whatever_else_holds() -> None:
    (reason,) = verdict.verdicts(shape(max_new_tokens=8), tokens(0.0, forks=0))
    assert reason.name == "no-fork" and "more tokens" not in reason.words
    (reason,) = verdict.verdicts(shape(stretch=None), tokens(-0.375, forks=0))
    assert "nothing but their prompt; trees sample 37.5% more tokens" in reason.words


@pytest.mark.parametrize(("most", "named"), [(8, True), (7, True), (9, False)])
def test_a_segment_as_long_as_the_answer_is_named(most: int, named: bool) -> None:
    (reason,) = verdict.verdicts(shape(max_new_tokens=most), tokens(0.0, forks=0))
    assert ("generate.settings.segment is 8" in reason.words) == named


@pytest.mark.parametrize(
    ("length", "width", "fitting"),
    [(24, 8, 8), (12, 16, 3), (12, 9, 3), (4, 16, 1), (3, 16, 0), (9, 1, 9), (9, 2, 9)],
)
def test_the_stretch_that_fits_divides_an_answer_by_the_levels(
    length: int, width: int, fitting: int
) -> None:
    assert verdict.fitting_stretch(length, width) == fitting


def test_the_remedy_is_a_shorter_stretch_where_one_fits() -> None:
    iid = ("generate.policy=iid", "generate.settings={width: 8}")
    long = shape(stretch=Setting(name="segment", value=24))
    assert verdict.remedies(long, 24) == (("generate.settings.segment=8",), iid)
    assert verdict.remedies(shape(), 24) == (iid,), "it fits already"
    assert verdict.remedies(long, 2) == (iid,), "two tokens have no room for three levels"
    assert verdict.remedies(shape(stretch=None), 24) == (iid,)
    assert verdict.independent(shape(head=True)) == (*iid, "optimise.head=null")


def test_advice_is_what_a_person_types() -> None:
    (reason,) = verdict.verdicts(shape(max_new_tokens=24, stretch=SEGMENT), tokens(0.0))
    assert reason.advice == ("--set 'generate.policy=iid' --set 'generate.settings={width: 8}'")


def test_credit_per_leaf_is_noted_where_paths_part() -> None:
    (words,) = verdict.notes(shape(advantage="grpo"), tokens())
    assert words.startswith("optimise.advantage grpo gives credit per leaf")
    assert verdict.notes(shape(advantage="grpo"), tokens(0.0, forks=0)) == []


@pytest.mark.parametrize(("depth", "noted"), [(3, False), (4, True)])
def test_depth_that_no_answer_reaches_is_noted(depth: int, noted: bool) -> None:
    found = verdict.notes(shape(depth=Setting(name="max_depth", value=depth)), tokens())
    assert found == (
        ["generate.settings.max_depth is 4: answers of at most 24 tokens end at depth 3"]
        if noted
        else []
    )


def test_sums_over_trees() -> None:
    one = TreeTokens(leaves=2, forks=1, sampled=6, paths=8)
    assert total([one, one]) == TreeTokens(leaves=4, forks=2, sampled=12, paths=16)
    assert one.saved == 0.25 and total([]).saved == 0.0


def recipe(policy: str, **settings: object) -> Shape:
    control = {"control": {"rooms": "xrpo"}} if policy == "rounds" else {}
    generate = {"policy": policy, "settings": settings}
    base = {"name": "x", "model": "none", "task": {"name": "arithmetic"}}
    return shape_of(resolve({**base, "generate": generate, **control}))


def test_a_shape_holds_the_settings_of_fixed_forks_with_their_defaults() -> None:
    of = recipe("treepo", width=4)
    assert (of.stretch, of.depth) == (
        Setting(name="segment", value=512),
        Setting(name="max_depth", value=14),
    )
    assert (of.width, of.advantage, of.judged) == (4, "grpo", True)
    assert recipe("tree-grpo", node=7).stretch == Setting(name="node", value=7)
    assert recipe("rose").stretch is None, "it forks where the model says"


@pytest.mark.parametrize("policy", ["iid", "dars", "scope", "rounds"])
def test_policies_that_do_not_mean_to_share_are_not_judged(policy: str) -> None:
    assert not recipe(policy).judged
