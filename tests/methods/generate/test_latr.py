"""latr (arXiv 2510.24302): its rules by numbers, its trees, and interruptions."""

import itertools

import numpy as np
import pytest

from banyan.draws import Draws
from banyan.errors import InvalidInput
from banyan.plugins import GrowthBudget
from banyan.recipe_loader.load import resolve
from banyan.segment import Kind
from methods.generate.latr.lookahead import ForkRule, Likeness
from methods.generate.latr.policy import Latr
from methods.generate.latr.similarity import edit_distance
from tests.methods.generate.forests import Hand
from tests.methods.generate.latr_chains import BOTH, DIGITS, LATR, LETTERS, SMALL
from tests.rollout.growing import IID, engine, grow, spec

BOTH |= {"yyyy": {"a": 0.5, "b": 0.3, "": 0.2}, "a": {"a": 0.9, "": 0.1}, "b": {"b": 0.6, "x": 0.4}}


def greedy(segment):
    return segment.kind is Kind.POLICY and segment.sampling.temperature == 0


def opened(grower):
    """Return the text before each forced token, and the token."""
    return {
        grower.tokenizer.decode(grower.tree.prefix_tokens(s.id, 1))
        for s in grower.tree
        if s.kind is Kind.FORCED
    }


def answers(grower):
    return sorted(grower.completion(leaf) for leaf in grower.leaves)


def test_a_runner_up_opens_a_branch_iff_it_is_likely_and_near_to_the_first():
    rule = ForkRule(0.25, 0.15)
    p = [
        [0.45, 0.35, 0.1],
        [0.60, 0.30, 0.1],
        [0.375, 0.25, 0.1],
        [0.5, 0.375, 0.1],
        [0.2, 0.2, 0.1],
    ]
    assert rule.fires(p)[:, 1].tolist() == [True, False, False, True, False]
    assert not ForkRule(0.25, 0.125).fires([[0.5, 0.375]])[0, 1], "equal to τ_rel is no"
    assert ForkRule(0.05, 0.4, candidates=3).fires(p)[0].tolist() == [True, True, True]


def test_branches_that_are_too_alike():
    parent = list(range(20))
    edit, suffix, rouge = Likeness(0.4, 1.0, 1.0), Likeness(0.0, 0.2, 1.0), Likeness(0.0, 1.0, 0.5)
    seven, eight = ([100 + i if i < n else i for i in range(20)] for n in (7, 8))
    assert edit.between(seven, parent) and not edit.between(eight, parent)
    four, five = ([100 + i if i < 20 - n else i for i in range(20)] for n in (4, 5))
    assert not suffix.between(four, parent) and suffix.between(five, parent)
    half, more = ([100 + i if i % 20 >= n else i for i in range(20)] for n in (10, 11))
    assert not rouge.between(half, parent) and rouge.between(more, parent)
    assert not Likeness(0.0, 1.0, 1.0).between(parent, parent), "each test can be left out"


def test_presets_and_the_share_of_the_tree():
    math, countdown = Latr(), Latr(preset="countdown")
    assert (math.rule, countdown.rule) == (ForkRule(0.15, 0.25), ForkRule(0.25, 0.15))
    assert math.likeness == Likeness(0.0, 0.2, 0.5) and countdown.likeness == Likeness(
        0.4, 1.0, 1.0
    )
    assert [math.leaves_of_the_tree(8, s) for s in (0, 99, 100, 199, 200, 300, 9000)] == [
        8,
        8,
        6,
        6,
        4,
        2,
        2,
    ]
    assert [countdown.leaves_of_the_tree(8, s) for s in (0, 10, 20, 80, 199, 200)] == [
        8,
        6,
        4,
        2,
        2,
        0,
    ]
    own = Latr(eta={"0": 0.5, "7": 1.0})  # as a stored recipe has it: JSON knows no other keys
    assert [own.leaves_of_the_tree(8, s) for s in (6, 7)] == [4, 8]
    assert Latr(eta={0: 0.25}).leaves_of_the_tree(4, 0) == 0, "a tree of one is an ordinary sample"


def test_a_branch_that_goes_on_as_its_parent_is_deleted_and_one_that_does_not_is_kept():
    grower, _ = grow(spec(LATR, SMALL, 24), engine({"chain": DIGITS}))
    assert len(opened(grower)) >= 3 and all(text.endswith("2") for text in opened(grower))
    on_paths = {
        s.id: s
        for leaf in grower.leaves
        for s in grower.tree.lineage(leaf.segment)
        if s.kind is Kind.FORCED
    }
    places = [len(grower.tree.prefix_tokens(s.parent, s.fork)) - 3 for s in on_paths.values()]
    assert min(places, default=20) > 20 - 4, (
        "only those that were too young at the end of the tree are left"
    )
    grower, _ = grow(spec(LATR, SMALL, 24), engine({"chain": LETTERS}))
    assert set(answers(grower)) == {"xxx" + "a" * 21, "xxx" + "b" * 21}


def test_what_grew_from_a_deleted_branch_is_deleted_with_it():
    grower, _ = grow(spec(LATR, SMALL | {"ages": [6]}, 24), engine({"chain": DIGITS}))
    forced = {s.id for s in grower.tree if s.kind is Kind.FORCED}
    assert any(len(forced & {a.id for a in grower.tree.lineage(s)}) == 2 for s in forced), (
        "one branched in its six tokens"
    )
    places = [
        len(grower.tree.prefix_tokens(s.parent, s.fork)) - 3
        for leaf in grower.leaves
        for s in grower.tree.lineage(leaf.segment)
        if s.id in forced
    ]
    assert min(places, default=20) > 20 - 6


def test_branches_that_have_ended_are_not_compared():
    chain = DIGITS | {"1xx": {"": 1.0}, "2xx": {"": 1.0}}
    grower, _ = grow(spec(LATR, SMALL | {"width": 2, "ages": [4]}, 24), engine({"chain": chain}))
    assert answers(grower) == ["xxx1xx", "xxx2xx"], "alike but for a digit"
    assert any(
        s.kind is Kind.FORCED for leaf in grower.leaves for s in grower.tree.lineage(leaf.segment)
    )


def test_greedy_tokens_are_of_a_distribution_with_one_token():
    grower, _ = grow(spec(LATR, SMALL, 24), engine({"chain": BOTH}))
    segments = [s for s in grower.tree if greedy(s)]
    assert segments and all(
        s.sampling.truncated and not s.sampled_logprobs_T.any() for s in segments
    )
    assert all(len(s.sampled_logprobs_T) == len(s) for s in segments)
    unsure = next(s for s in segments if "1" in s.text)
    assert unsure.logprobs_T[unsure.text.index("1")] == pytest.approx(np.log(0.55), abs=1e-3)
    tails = [s for s in grower.tree if s.kind is Kind.POLICY and not greedy(s)]
    assert tails and all(
        s.sampling.temperature == 1 and not len(s.sampled_logprobs_T) for s in tails
    )


def test_a_policy_that_truncates_must_be_allowed_by_the_recipe():
    data = {
        "name": "x",
        "model": "none",
        "task": {"name": "arithmetic"},
        "generate": {"policy": LATR},
    }
    with pytest.raises(InvalidInput, match="allow_truncated_sampling: true"):
        resolve(data)
    assert resolve(data | {"allow_truncated_sampling": True}).generate.policy == LATR


def test_the_tree_does_not_depend_on_its_chunks():
    trees = []
    for chunk in (1, 2, 5, 64):
        grower, _ = grow(spec(LATR, SMALL | {"chunk": chunk}, 24), engine({"chain": BOTH}))
        places = sorted(
            len(grower.tree.prefix_tokens(s.id, 1)) for s in grower.tree if s.kind is Kind.FORCED
        )
        trees.append((opened(grower), places))
    assert all(tree == trees[0] for tree in trees) and trees[0][1]


def test_second_choices_come_before_third_ones_by_row_while_there_is_room():
    chain = {"": dict.fromkeys("abc", 1 / 3)}
    more = {
        "tau_abs": 0.1,
        "tau_rel": 0.9,
        "candidates": 3,
        "chunk": 4,
        "ages": [9],
        "edit_distance": 0.0,
    }
    for width, forced in (
        (2, {"b"}),
        (3, {"b", "c"}),
        (4, {"b", "c", "ab"}),
        (6, {"b", "c", "ab", "bb", "cb"}),
    ):
        grower, _ = grow(spec(LATR, SMALL | more | {"width": width}, 24), engine({"chain": chain}))
        assert {text.removeprefix("go\n") for text in opened(grower)} == forced
        assert len(grower.leaves) == width


def test_slots_that_are_left_are_copies_of_the_first_branch_which_sampling_drives_apart():
    sure = {"": {"x": 0.9, "y": 0.1}}
    grower, _ = grow(spec(LATR, SMALL | {"force_return": 8}, 24), engine({"chain": sure}))
    assert not opened(grower) and len(set(answers(grower))) == 4
    assert all(text.startswith("x" * 8) for text in answers(grower))


def test_where_all_branches_ended_fresh_samples_fill_the_slots():
    chain = {"": {"x": 0.9, "": 0.1}, "xxx": {"": 0.8, "y": 0.2}}
    grower, _ = grow(spec(LATR, SMALL, 24), engine({"chain": chain}))
    assert len(grower.leaves) == 4 and answers(grower).count("xxx") >= 1
    starts = [s.ordinal for s in grower.tree.children[grower.tree.root.id]]
    assert starts == [0, 3, 4, 5]


def test_a_forced_end_is_a_finished_branch():
    chain = {"": {"x": 1.0}, "xxx": {"a": 0.5, "": 0.4, "b": 0.1}, "a": {"a": 1.0}}
    grower, _ = grow(spec(LATR, SMALL | {"width": 2}, 24), engine({"chain": chain}))
    assert answers(grower) == ["xxx", "xxx" + "a" * 21]


def test_the_share_of_independent_samples_starts_at_the_prompt_at_once():
    hand = Hand()
    plan = Latr(width=8, eta={0: 1.0, 5: 0.5}).plan(hand.view(), GrowthBudget(step=5), Draws(1))
    assert sorted(e.sampling.temperature for e in plan.expansions) == [0.0] + [1.0] * 4
    assert [e.sampling.max_new_tokens for e in plan.expansions] == [10] * 4 + [10]
    narrow = Latr(width=8).plan(hand.view(), GrowthBudget(max_leaves=3, step=250), Draws(1))
    assert sorted(e.sampling.temperature for e in narrow.expansions) == [0.0, 1.0], (
        "round(1.5) = 2 leaves of the tree"
    )


def test_latr_leaves_differ_more_than_independent_samples_on_the_reconverging_model():
    """A lookahead of 10 frees the slots of digits before the next letter; then all eight endings
    occur."""
    lookahead = {"width": 8, "preset": "countdown", "chunk": 8, "ages": [10]}
    means, endings = {}, {}
    for name, policy in ((LATR, lookahead), (IID, {"width": 8})):
        grown = [
            grow(spec(name, policy, 128, seed), engine({"toy": "reconverging"}))[0]
            for seed in range(6)
        ]
        pairs = [pair for grower in grown for pair in itertools.combinations(answers(grower), 2)]
        means[name] = np.mean([edit_distance(a, b) / max(len(a), len(b)) for a, b in pairs])
        endings[name] = [len({text[-1] for text in answers(grower)}) for grower in grown]
    assert set(endings[LATR]) == {8} and np.mean(endings[IID]) < 7
    assert means[LATR] > means[IID] + 0.02, means


@pytest.mark.parametrize(
    "bad,message",
    [
        ({"chunk": 0}, "chunk must be a whole number of at least 1, got 0"),
        ({"width": True}, "width must be a whole number of at least 1, got True"),
        ({"rouge": "x"}, "rouge must be a finite number, got 'x'"),
        ({"preset": "code"}, "one of math, countdown"),
        ({"candidates": 1}, "candidates must be a whole number in 2..20"),
        ({"ages": [20, 0]}, "ages must be whole numbers"),
        ({"force_return": 0}, "force_return must be at least 1"),
        ({"eta": {0: 1.5}}, "numbers in 0..1 by step"),
        ({"eta": {"x": 1.0}}, "numbers in 0..1 by step"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(bad, message):
    with pytest.raises(ValueError, match=message):
        Latr(**bad)
