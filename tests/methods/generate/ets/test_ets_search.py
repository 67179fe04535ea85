"""ets as a tree policy: decisions on a tree, ends of steps and paths, scores, and memory."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.draws import Draws
from banyan.errors import InvalidInput
from banyan.plugins import Branch, GrowthBudget, GrowthView, Row, Scored, Unscorable
from banyan.plugins.filter import UNCONFINED
from banyan.segment import Finish, Sampling
from banyan.signals import Signals
from banyan.tree import Leaf
from methods.generate.coroutine_policy import Growth
from methods.generate.ets.meaning import embeddings
from methods.generate.ets.policy import Ets
from methods.generate.ets.search import Search, SelectionRule, decided
from services.learner.data.tree_metrics import kv_tokens
from services.rollout.growth.grower import Grower
from tests.methods.generate.forests import Hand, asked, grow_anyhow
from tests.rollout.growing import engine, grow, shape, spec, survivors

ETS = "methods.generate.ets.policy:Ets"
EXAMPLE = (0.9, 0.9, 0.8, 0.7)  # a1, a2, a3 under A, b1 under B
ABOVE = ((b"root", b"A"), (b"root", b"A"), (b"root", b"A"), (b"root", b"B"))
TEXTS = ("12 + 3 = 15", "12 + 3 = 15", "twelve", "no idea")  # clusters {a1, a2}, {a3}, {b1}


@pytest.mark.parametrize(
    ("lambda_b", "lambda_d", "kept", "children", "named"),
    [
        (1.0, 0.0, (0, 1, 2), (4, 3, 1), ()),
        (1.0, 1.5, (0, 1, 2, 3), (3, 3, 2, 0), (0, 0, 1, 2)),
        (1.0, 0.3, (0, 1, 2), (4, 3, 1), (0, 0, 1, 2)),
        (2.0, 0.0, (0, 1), (4, 4), ()),
        (0.0, 0.0, (0, 1, 2, 3), (3, 3, 2, 0), ()),
    ],
)
def test_the_published_decisions(
    lambda_b: float,
    lambda_d: float,
    kept: tuple[int, ...],
    children: tuple[int, ...],
    named: tuple[int, ...],
) -> None:
    assert decided(SelectionRule(lambda_b, lambda_d, 0.2, 0.05), EXAMPLE, ABOVE, TEXTS, 8) == (
        kept,
        children,
        named,
    )


def test_where_there_is_no_choice_nothing_is_clustered() -> None:
    rule = SelectionRule(1.0, 1.5, 0.2, 0.05)
    assert decided(rule, (0.4,), ABOVE[:1], TEXTS[:1], 5) == ((0,), (5,), ())
    assert decided(rule, (0.4, 0.4), ABOVE[:2], ("same", "same"), 4)[2] == ()


def test_steps_are_alike_if_they_are_written_alike() -> None:
    texts = (
        "So x = 4  and y = 7.",
        "so x = 4 and\ny = 7.",
        "so x = 4 and y = 8.",
        "Let us factor 91.",
        "",
    )
    unit = [row / (np.linalg.norm(row) or 1.0) for row in embeddings(texts)]
    assert unit[0] @ unit[1] == pytest.approx(1.0)
    assert 0.7 < unit[0] @ unit[2] < 0.95 and unit[0] @ unit[3] < 0.3
    assert embeddings(["", ""]).shape == (2, 1)


# -- what ends a step, and what a path
# -----------------------------------------------------------------------------------


def told(score: float, tokens: int = 2) -> Signals:
    """Return signals whose last token has this score."""
    return Signals(head_T=np.array([0.0] * (tokens - 1) + [score]))


def test_a_delimiter_ends_a_step_and_the_end_token_a_path() -> None:
    hand = Hand(max_path_tokens=10, sampling=Sampling(stop=("STOP",)))
    policy = Ets(width=4, step=3, delimiter=".", lambda_b=0.0, lambda_d=0.0)
    plan = policy.plan(hand.view(), GrowthBudget(), Draws(1))
    assert asked(plan, hand.tree) == {hand.start(i): 3 for i in range(4)}
    assert plan.expansions[0].sampling.stop == ("STOP", ".") and plan.expansions[0].signals.head
    step = hand.put(hand.start(0), [-1.0, -1.0], Finish.STOP, "a.", told(0.9))
    full = hand.put(hand.start(1), [-1.0] * 3, Finish.BOUNDARY, "aaa", told(0.9, 3))
    ended = hand.put(hand.start(2), [-1.0, -1.0], Finish.STOP, "a", told(0.1))
    stopped = hand.put(hand.start(3), [-1.0, -1.0], Finish.STOP, "a.STOP", told(0.1))
    plan = policy.plan(hand.view(), GrowthBudget(), Draws(1))
    assert {(m.leaf, m.reason) for m in plan.leaves} == {
        (Leaf(ended.id, 2), "stop"),
        (Leaf(stopped.id, 2), "stop"),
    }
    assert asked(plan, hand.tree) == {Branch(step.id, 2, 0): 3, Branch(full.id, 3, 0): 3}, (
        "two are left of the width"
    )


def test_a_path_ends_at_its_tokens_and_at_its_depth() -> None:
    hand = Hand(max_path_tokens=9)
    policy = Ets(width=2, step=4, most=6, depth=2, lambda_b=0.0, lambda_d=0.0)
    item, two = (
        hand.put(hand.start(i), [-1.0] * 4, Finish.BOUNDARY, signals=told(0.5, 4)) for i in range(2)
    )
    plan = policy.plan(hand.view(), GrowthBudget(), Draws(1))
    assert asked(plan, hand.tree) == {Branch(item.id, 4, 0): 2, Branch(two.id, 4, 0): 2}, (
        "most is 6"
    )
    long = hand.put(Branch(item.id, 4, 0), [-1.0] * 2, Finish.BOUNDARY)
    deep = hand.put(Branch(two.id, 4, 0), [-1.0], Finish.STOP, "\n\n")
    plan = policy.plan(hand.view(), GrowthBudget(), Draws(1))
    assert plan.done and {(m.leaf.segment, m.reason) for m in plan.leaves} == {
        (long.id, "length"),
        (deep.id, "depth"),
    }


def test_children_follow_the_head_and_without_one_all_are_equal() -> None:
    result = {}
    for heard in (True, False):
        hand = Hand(max_path_tokens=99)
        for i, score in enumerate(EXAMPLE):
            hand.put(
                hand.start(i), [-1.0] * 2, Finish.BOUNDARY, "x", told(score) if heard else Signals()
            )
        policy = Ets(width=8, step=2, lambda_b=0.0, lambda_d=0.0)
        plan = policy.plan(hand.view(), GrowthBudget(max_leaves=4), Draws(1))
        parents = [e.branch.parent for e in plan.expansions if e.branch.parent != hand.root.id]
        order = [hand.tree.at(hand.root.id, 2, i).id for i in range(4)]  # type: ignore[union-attr]
        result[heard] = [parents.count(segment) for segment in order]
    assert result == {True: [2, 2, 0, 0], False: [1, 1, 1, 1]}


@dataclass(frozen=True)
class Sevens:
    """Scorer of a path by its share of b's."""

    name = "sevens"
    version = "1"

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return the share; unscorable for an empty path."""
        return (
            Scored(completion.count("b") / len(completion))
            if completion and row == {"prompt": "go"}
            else Unscorable("empty")
        )


def test_a_scorer_of_our_list_may_take_the_heads_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UNCONFINED, f"{__name__}:Sevens", f"{Sevens.__module__}:Sevens")
    hand = Hand(max_path_tokens=99)
    texts = ("aa", "ab", "bb", "")
    created = [
        hand.put(hand.start(i), [-1.0] * 2, Finish.BOUNDARY, text) for i, text in enumerate(texts)
    ]
    policy = Ets(
        width=4, step=2, lambda_b=0.0, lambda_d=0.0, temperature=0.2, scorer=f"{__name__}:Sevens"
    )
    plan = policy.plan(hand.view(), GrowthBudget(), Draws(1))
    assert set(asked(plan, hand.tree)) == {Branch(created[2].id, 2, i) for i in range(4)}
    assert not plan.expansions[0].signals and not policy.needs_head and Ets().needs_head
    assert policy.observations(hand.tree, [Leaf(created[0].id, 2)]) == []
    assert [policy.score("go", text) for text in ("", "ab")] == [0.0, 0.5]


def test_the_head_learns_at_the_end_of_each_step() -> None:
    hand = Hand(max_path_tokens=99)
    item = hand.put(hand.start(0), [-1.0] * 2, Finish.BOUNDARY)
    cut = hand.put(Branch(item.id, 2, 0), [-1.0] * 3, Finish.ABORTED)
    rest = hand.put(Branch(cut.id, 3, 0), [-1.0], Finish.BOUNDARY)
    two = hand.put(Branch(item.id, 2, 1), [-1.0] * 4, Finish.STOP)
    observed = Ets().observations(hand.tree, [Leaf(rest.id, 1), Leaf(two.id, 4)])
    assert [(o.leaf.segment, o.at, o.kept) for o in observed] == [
        (rest.id, 1, 1.0),
        (rest.id, 5, 1.0),
        (two.id, 1, 1.0),
        (two.id, 5, 1.0),
    ]


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"width": 0}, "width"),
        ({"delimiter": ""}, "delimiter"),
        ({"delimiter": 0.5}, "delimiter"),
        ({"temperature": 0.0}, "temperature"),
        ({"lambda_b": -1.0}, "lambda_b"),
        (
            {"scorer": f"{__name__}:Sevens"},
            "needs the verifier's sandbox",
        ),  # whatever it says of itself
        ({"scorer": "methods.filter.number:Number"}, "needs the verifier's sandbox"),
        (
            {"scorer": "regex", "scorer_settings": {"pattern": "a"}},
            "needs the verifier's sandbox.*ets takes number, steps",
        ),
        ({"scorer": "majority"}, "needs the verifier's sandbox"),
        ({"scorer": "no-such"}, "no filter plugin"),
    ],
)
def test_impossible_settings_are_refused(given_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        spec(ETS, given_settings)


# -- whole trees
# ------------------------------------------------------------------------------------------

# Steps of a letter, a digit and a full stop: a's are good, b's and c's less; after a c the path may
# end.
_DIGITS = {"1": 0.5, "2": 0.5}
STEPS: dict[str, Any] = {
    "chain": {"": {"a": 0.4, "b": 0.4, "c": 0.2}}
    | {letter: dict(_DIGITS) for letter in "abc"}
    | {f"{letter}{digit}": {".": 1.0} for letter in "ab" for digit in "12"}
    | {f"c{digit}": {".": 0.7, "": 0.3} for digit in "12"},
    "scores": {f"a{d}": 0.9 for d in "12"}
    | {f"b{d}": 0.6 for d in "12"}
    | {f"c{d}": 0.3 for d in "12"}
    | {"": 0.5},
}
SMALL: dict[str, Any] = {"step": 4, "delimiter": ".", "depth": 8}


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 24), st.sampled_from([0.0, 1.0]))
def test_every_tree_has_its_width_and_neither_order_nor_a_death_changes_it(
    seed: int, width: int, tokens: int, lambda_b: float
) -> None:
    given_spec = spec(ETS, {**SMALL, "width": width, "lambda_b": lambda_b}, tokens, seed)
    straight, _ = grow(given_spec, engine(STEPS))
    assert len(straight.leaves) == width
    rng = random.Random(seed)
    assert shape(grow_anyhow(given_spec, engine(STEPS), rng)) == shape(straight)
    repeated, _ = grow(given_spec, engine(STEPS), survivors(straight.tree, rng))
    assert shape(repeated) == shape(straight)
    assert len(grow_anyhow(given_spec, engine(STEPS), rng, cuts=0.3).leaves) == width


def searched(grower: Grower, policy: Ets) -> Search:
    """Return the search of a grown tree."""
    search = Search(
        policy, Growth(GrowthView(grower.tree, 0, 40), GrowthBudget(), Draws(0)), policy.width
    )
    search.growth.start(search.grow())
    assert search.growth.plan().done
    return search


def test_the_metric_of_a_run_is_what_the_search_held() -> None:
    same = 0
    for seed in range(10):
        grower = grow(spec(ETS, {**SMALL, "width": 8}, 40, seed), engine(STEPS))[0]
        held = sum(depth.kv_tokens for depth in searched(grower, Ets(**SMALL, width=8)).depths)
        measured = kv_tokens(grower.tree, list(grower.leaves))
        assert measured >= held > 0, "and what of a last depth no width was left for"
        same += measured == held
    assert same >= 5


def kinds(search: Search) -> float:
    """Return the mean number of letters among a depth's candidates that go on."""
    result = []
    for depth in search.depths:
        going = [
            n
            for n in depth.candidates
            if search.growth.view.tree.at(n.id, len(n.run.last), 0) is not None
        ]
        result.append(len({node.run.text[0] for node in going}))
    return float(np.mean(result))


def test_less_is_kept_in_memory_than_by_rebase_and_as_many_kinds_of_steps_go_on() -> None:
    """Unique tokens are summed over depths at equal width. Without the bonus kinds are lost."""
    memory, variety = {}, {}
    methods = {
        "ets": {},
        "rebase": {"lambda_b": 0.0, "lambda_d": 0.0},
        "no bonus": {"lambda_d": 0.0},
    }
    for name, changed in methods.items():
        asked_for = {**SMALL, "width": 16, "temperature": 1.0, **changed}
        trees = [grow(spec(ETS, asked_for, 40, seed), engine(STEPS))[0] for seed in range(25)]
        searches = [searched(grower, Ets(**asked_for)) for grower in trees]
        memory[name] = np.mean([sum(depth.kv_tokens for depth in s.depths) for s in searches])
        variety[name] = np.mean([kinds(s) for s in searches])
    assert memory["ets"] < 0.85 * memory["rebase"], memory
    assert variety["ets"] > 0.95 * variety["rebase"] > variety["no bonus"], variety
