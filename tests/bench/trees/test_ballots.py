"""Votes in one process: weights are the last scores on paths, and winners count as right or not."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from banyan.credit.estimate import ScoredTree
from banyan.recipe_loader.load import resolve
from banyan.segment import Finish, Kind, Segment
from banyan.signals import Signals
from banyan.tree import Leaf, Tree
from bench.trees import ballots
from methods.filter.head_vote import HeadVote
from methods.filter.vote import Vote
from services.rollout.growth.spec import from_wire

ROOT = Segment(b"t", b"", 0, 0, Kind.PROMPT, np.arange(4, dtype=np.int32))


class _Letters:
    @staticmethod
    def decode(tokens: Any) -> str:
        return "".join(chr(int(token)) for token in tokens)


def _grown(parent: Segment, fork: int, ordinal: int, text: str, heads: list[float]) -> Segment:
    signals = Signals(head_T=np.array(heads, np.float32))
    return Segment(
        b"t", parent.id, fork, ordinal, Kind.POLICY, np.array([*map(ord, text)], np.int32),
        np.zeros(len(text), np.float32), policy=b"p", finish=Finish.STOP, text=text,
        signals=signals,
    )  # fmt: skip


def _tree(*segments: Segment) -> tuple[Tree, list[Leaf]]:
    tree = Tree(b"t", [ROOT])
    for segment in segments:
        tree.add(segment)
    return tree, [Leaf(segment.id, len(segment)) for segment in segments]


def test_a_leaf_weighs_as_much_as_the_last_score_on_its_path() -> None:
    stem = _grown(ROOT, 4, 0, "abc", [0.125, 0.25, 0.5])
    silent = _grown(stem, 2, 0, "xy", [])  # it goes on behind the stem's second token
    own = _grown(stem, 3, 0, "z", [0.75])
    bare = _grown(ROOT, 4, 1, "q", [])
    tree, leaves = _tree(stem, silent, own, bare)
    assert [ballots.last(tree, leaf) for leaf in leaves] == [0.5, 0.25, 0.75, None]


@pytest.mark.parametrize(
    ("heads", "outcome"),
    [((0.125, 0.125, 0.5), (0.0, 1.0, 1 / 3)), ((0.5, 0.5, 0.5), (0.0, 0.0, 1 / 3))],
)
def test_a_winner_is_right_or_wrong(
    heads: tuple[float, ...], outcome: tuple[float, float, float]
) -> None:
    answers = zip("112", heads, strict=True)
    tree, leaves = _tree(*(_grown(ROOT, 4, i, x, [h]) for i, (x, h) in enumerate(answers)))
    rewards: dict[Leaf, float | None] = dict(zip(leaves, (0.0, 0.0, 1.0), strict=True))
    grown = ScoredTree(tree, tuple(leaves), rewards)
    process: Any = SimpleNamespace(tokenizer=_Letters)
    counting = {"vote": Vote(), "head-vote": HeadVote()}
    assert ballots.row(process, grown, {}, counting) == pytest.approx(outcome)


def test_a_row_in_which_the_head_has_no_say_has_no_such_vote() -> None:
    tree, leaves = _tree(_grown(ROOT, 4, 0, "1", [0.5]), _grown(ROOT, 4, 1, "1", []))
    grown = ScoredTree(tree, tuple(leaves), dict.fromkeys(leaves, 1.0))
    process: Any = SimpleNamespace(tokenizer=_Letters)
    found = ballots.row(process, grown, {}, {"vote": Vote(), "head-vote": HeadVote()})
    assert found[0] == 1.0 and np.isnan(found[1]) and found[2] == 1.0


def test_half_a_reward_is_no_right_answer() -> None:
    tree, leaves = _tree(_grown(ROOT, 4, 0, "1", []), _grown(ROOT, 4, 1, "2", []))
    rewards: dict[Leaf, float | None] = dict(zip(leaves, (0.5, None), strict=True))
    process: Any = SimpleNamespace(tokenizer=_Letters)
    found = ballots.row(process, ScoredTree(tree, tuple(leaves), rewards), {}, {"vote": Vote()})
    assert (found[0], found[2]) == (0.0, 0.0)


def test_the_first_held_out_rows_vote_with_the_trees_of_a_voted_evaluation() -> None:
    parts = {
        "generate": {"policy": "arrol", "settings": {"width": 8, "detect": 3}},
        "optimise": {"head": {}},
        "eval": {"votes": {"weight": "head", "width": 3}},
    }
    recipe = resolve({"name": "x", "model": "tiny", "task": {"name": "arithmetic"}, **parts})
    asked: list[Any] = []

    def grow(specs: list[Any]) -> tuple[list[ScoredTree], None]:
        """Grow rows whose first answer is right: once it wins, once only the head says so."""
        asked.extend(specs)
        grown = []
        for texts, heads in (("711", (0.5, 0.5, 0.5)), ("711", (0.5, 0.125, 0.25))):
            voices = enumerate(zip(texts, heads, strict=True))
            tree, leaves = _tree(*(_grown(ROOT, 4, i, x, [h]) for i, (x, h) in voices))
            rewards: dict[Leaf, float | None] = dict(zip(leaves, (1.0, 0.0, 0.0), strict=True))
            grown.append(ScoredTree(tree, tuple(leaves), rewards))
        return grown, None

    policy = SimpleNamespace(step=3)
    process: Any = SimpleNamespace(policy=policy, tokenizer=_Letters, grow=grow)
    found = ballots.held(process, recipe, 2)
    assert (found.plain, found.head, found.leaf) == pytest.approx((0.0, 0.5, 1 / 3))
    assert [list(spec.group_scorers) for spec in asked] == [["vote", "head-vote"]] * 2
    assert [from_wire(spec).head for spec in asked] == [True, True]
    assert len({spec.row_digest for spec in asked}) == 2
