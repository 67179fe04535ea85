"""The reward of a leaf, as a tree policy that decides by scores sees it: the same as the learner's. Pure."""

from collections.abc import Iterable, Mapping
from statistics import fmean

from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.wire import leaf_from_wire

Rewards = dict[Leaf, float | None]


def settled(scores: Iterable[tree_pb2.ScoredLeaf], leaves: Mapping[Leaf, str], scorers: int) -> Rewards:
    """Rewards of the leaves that all scorers have spoken of: the mean of their values; None where one has none."""
    said: dict[Leaf, dict[str, float | None]] = {}
    for scored in scores:
        leaf, ok = leaf_from_wire(scored.leaf), scored.score.state == tree_pb2.SCORE_STATE_SCORED
        if leaf in leaves:
            said.setdefault(leaf, {})[scored.scorer] = scored.score.value if ok else None
    return {leaf: _mean(of.values()) for leaf, of in said.items() if len(of) >= scorers}


def _mean(values: Iterable[float | None]) -> float | None:
    all_of = list(values)
    numbers = [v for v in all_of if v is not None]
    return fmean(numbers) if len(numbers) == len(all_of) else None
