"""Samples of completions by hand: whole texts, cut ones, credit, and what never leaves."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from banyan.credit.estimate import Credit
from banyan.loggers.completions import LONGEST, Completion, cut, table
from banyan.plugins import Advantages, GroupTrees
from banyan.segment import Finish, IntTokens, Kind, Origin, Segment
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from banyan.view import TreeView
from services.learner.data.completions import drawn

TREE = b"t" * 32
NAN = float("nan")


def segment(parent: Segment | None, text: str, kind: Kind = Kind.POLICY, **more: Any) -> Segment:
    """Return a segment of a token a character that continues all of its parent."""
    sampled = kind in (Kind.POLICY, Kind.FORCED)
    if sampled:
        more |= {"logprobs_T": np.zeros(len(text), np.float32), "policy": b"p" * 32}
    return Segment(
        TREE,
        parent=parent.id if parent else b"",
        fork=more.pop("fork", len(parent) if parent else 0),
        ordinal=more.pop("ordinal", 0),
        kind=kind,
        tokens_T=np.array([*map(ord, text)], np.int32),
        text=text,
        finish=Finish.STOP,
        **more,
    )


def decode(tokens_T: IntTokens) -> str:
    return "".join(map(chr, tokens_T.tolist()))


def sampled(
    segments: Sequence[Segment],
    leaves: Sequence[Leaf],
    advantages: Advantages,
    rewards: Sequence[float | None] = (),
    trained: Sequence[float | None] = (),
    **more: Any,
) -> list[Completion]:
    """Return samples of all leaves of one tree, in their order.

    rewards: as they were scored
    trained: what the lesson has of them; the same, if empty
    """
    rewards = rewards or [1.0] * len(leaves)
    known = dict(zip(leaves, trained or rewards, strict=True))
    view = TreeView(Tree(TREE, segments), leaves, known)
    spec = tree_pb2.TreeSpec(
        tree_id=TREE, row_json='{"answer": "SECRET"}', messages_json="SECRET", scorers=["exact"]
    )
    stored = tree_pb2.Tree(spec=spec)
    for leaf, value in zip(leaves, rewards, strict=True):
        if value is not None:
            score = tree_pb2.Score(
                state=tree_pb2.SCORE_STATE_SCORED, value=value, parts={"form": 0.5}, reason="SECRET"
            )
            place = tree_pb2.LeafRef(segment=leaf.segment, end=leaf.end)
            stored.scores.append(tree_pb2.ScoredLeaf(leaf=place, scorer="exact", score=score))
    credit = Credit(GroupTrees("g", [view]), advantages, replayed=more.pop("replayed", frozenset()))
    rows = drawn([credit], {TREE: stored}, run_id="r", step=3, count=64, **more)
    order = {(leaf.segment.hex(), leaf.end): n for n, leaf in enumerate(leaves)}
    return sorted(rows, key=lambda row: order[row.segment, row.end])


PROMPT = segment(None, "2 + 2 = ", Kind.PROMPT)
FIRST = segment(PROMPT, "let me see: ", policy_step=1)
RIGHT = segment(FIRST, "4", policy_step=2)
WRONG = segment(FIRST, "five", ordinal=1, policy_step=1)
LEAVES = [Leaf(RIGHT.id, 1), Leaf(WRONG.id, 4)]
PLAIN = Advantages(leaf_G_L=(np.array([0.5, -0.5]),))


def test_a_sample_is_the_whole_path_with_its_credit_and_place() -> None:
    right, wrong = sampled([PROMPT, FIRST, RIGHT, WRONG], LEAVES, PLAIN, [1.0, 0.0])
    assert right == Completion(
        step=3,
        prompt="2 + 2 = ",
        completion="let me see: 4",
        reward=1.0,
        advantage=0.5,
        scores={"score/exact": 1.0, "part/exact/form": 0.5},
        tree_id=TREE.hex(),
        segment=RIGHT.id.hex(),
        end=1,
        policy_step=2,
    )
    assert (wrong.completion, wrong.reward, wrong.advantage) == ("let me see: five", 0.0, -0.5)
    assert "SECRET" not in repr([right, wrong])


def test_the_advantage_of_nodes_is_their_mean_over_the_paths_own_tokens() -> None:
    nodes = Advantages(
        leaf_G_L=(np.array([0.5, -0.5]),), node_G_N=(np.array([9.0, 0.1, 0.6, -0.6]),)
    )
    right, wrong = sampled([PROMPT, FIRST, RIGHT, WRONG], LEAVES, nodes)
    assert right.advantage == pytest.approx((12 * 0.1 + 1 * 0.6) / 13)
    assert wrong.advantage == pytest.approx((12 * 0.1 - 4 * 0.6) / 16)


def test_paths_without_a_reward_or_a_lesson_say_so() -> None:
    part = Advantages(leaf_G_L=(np.array([0.5, NAN]),))
    right, wrong = sampled([PROMPT, FIRST, RIGHT, WRONG], LEAVES, part, [1.0, None])
    assert (wrong.reward, wrong.advantage, wrong.scores) == (None, None, {})
    columns, rows = table([right, wrong])
    assert [dict(zip(columns, row, strict=True))["score/exact"] for row in rows] == [1.0, None]
    skipped = Advantages(leaf_G_L=(np.array([NAN, NAN]),), skip="equal rewards")
    assert [r.advantage for r in sampled([PROMPT, FIRST, RIGHT, WRONG], LEAVES, skipped)] == [0, 0]


def test_a_reward_is_as_it_was_scored_where_a_kl_is_taken_off_and_none_of_a_stale_path() -> None:
    rows = sampled([PROMPT, FIRST, RIGHT, WRONG], LEAVES, PLAIN, [1.0, 1.0], trained=[0.7, None])
    assert [row.reward for row in rows] == [1.0, None]


def test_a_path_that_leaves_a_segment_early_is_decoded() -> None:
    early = segment(FIRST, "no", fork=7, policy_step=2)
    leaves, advantages = [Leaf(early.id, 2), Leaf(FIRST.id, 12)], PLAIN
    rows = sampled([PROMPT, FIRST, early], leaves, advantages, decode=decode)
    assert [row.completion for row in rows] == ["let me no", "let me see: "]
    rows = sampled([PROMPT, FIRST, early], leaves, advantages)
    assert rows[0].completion == "[7 of 12 tokens of: let me see: ]no"


def test_texts_of_a_teacher_do_not_leave_and_branches_do() -> None:
    taught = segment(FIRST, "SECRET", Kind.FORCED, origin=Origin.TEACHER)
    after = segment(taught, "!")
    chosen = segment(FIRST, "so ", Kind.FORCED, origin=Origin.BRANCH, ordinal=1)
    end = segment(chosen, "4")
    leaves = [Leaf(after.id, 1), Leaf(end.id, 1)]
    rows = sampled([PROMPT, FIRST, taught, after, chosen, end], leaves, PLAIN, decode=decode)
    assert [row.completion for row in rows] == [
        "let me see: [6 tokens of a teacher are left out]!",
        "let me see: so 4",
    ]


def test_replayed_trees_are_not_sampled() -> None:
    assert sampled([PROMPT, FIRST, RIGHT, WRONG], LEAVES, PLAIN, replayed=frozenset({0})) == []


def test_the_draw_is_even_and_the_same_for_a_batch_that_is_trained_again() -> None:
    tails = [segment(PROMPT, f"{n:02}", ordinal=n) for n in range(40)]
    leaves = [Leaf(s.id, 2) for s in tails]
    view = TreeView(Tree(TREE, [PROMPT, *tails]), leaves, dict.fromkeys(leaves, 1.0))
    advantages = Advantages(leaf_G_L=(np.zeros(40),))
    credits = [Credit(GroupTrees("g", [view]), advantages)]
    trees = {TREE: tree_pb2.Tree()}

    def draw(step: int) -> list[str]:
        rows = drawn(credits, trees, run_id="r", step=step, count=4)
        assert len(rows) == 4
        return [row.completion for row in rows]

    assert draw(1) == draw(1) != draw(2)
    texts = {text for step in range(200) for text in draw(step)}
    assert texts == {f"{n:02}" for n in range(40)}


def test_a_huge_text_is_cut_with_a_mark() -> None:
    text = "a" * LONGEST + "b" * LONGEST
    short = cut(text)
    assert short.startswith("aaa") and short.endswith("bbb") and len(short) < LONGEST + 60
    assert f"[… {LONGEST:,} characters left out …]" in short
    assert cut("a" * LONGEST) == "a" * LONGEST
    assert cut("\ud800!") == "�!"
    huge = segment(PROMPT, "x" * 100_000)
    (row,) = sampled([PROMPT, huge], [Leaf(huge.id, 100_000)], Advantages((np.array([0.0]),)))
    assert len(row.completion) < LONGEST + 60 and "characters left out" in row.completion
