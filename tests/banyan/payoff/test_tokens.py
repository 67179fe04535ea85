"""Tokens of grown trees against independent samples, counted by hand."""

from typing import Any

import numpy as np

from banyan.payoff.tokens import TreeTokens, tokens_of
from banyan.segment import Finish, Kind, Segment
from banyan.tree import Leaf, Tree

ROOT = Segment(b"t", b"", 0, 0, Kind.PROMPT, np.arange(5, dtype=np.int32))


def grown(parent: Segment, fork: int, ordinal: int, length: int, **more: Any) -> Segment:
    fields = {"policy": b"p", "logprobs_T": np.zeros(length, np.float32), **more}
    tokens_T = np.arange(length, dtype=np.int32)
    return Segment(
        b"t", parent.id, fork, ordinal, fields.pop("kind", Kind.POLICY), tokens_T,
        finish=Finish.STOP, **fields,
    )  # fmt: skip


def test_given_tokens_are_on_paths_and_cost_no_sampling() -> None:
    """A stem of 4 that ends, one path that goes on inside it, and one behind given tokens."""
    stem = grown(ROOT, 5, 0, 4)
    inside = grown(stem, 2, 0, 3)
    given = grown(ROOT, 5, 1, 6, kind=Kind.FORCED, policy=b"")
    behind = grown(given, 6, 0, 2)
    cut = grown(ROOT, 5, 2, 7)  # on no leaf's path
    tree = Tree(b"t", [ROOT])
    for segment in (stem, inside, given, behind, cut):
        tree.add(segment)
    leaves = [Leaf(segment.id, len(segment)) for segment in (stem, inside, behind)]
    assert tokens_of(tree, leaves) == TreeTokens(
        leaves=3, forks=1, sampled=4 + 3 + 2 + 7, paths=4 + (2 + 3) + (6 + 2)
    )
