"""Unrolls a tree into one DFS sequence in which every token stands once, with an index that gathers paths back from it.

The log-prob of a node's first token is predicted from the last token of its PARENT NODE on the path, never from the packed
neighbour. Siblings that share a predictor and a token share one prediction. Pure numpy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from banyan.segment import Kind
from banyan.view import Node, TreeView
from services.learner.packing import head_observations as watched
from services.learner.packing.head_observations import Observed, Watched
from services.learner.packing.loss_targets import PATHS, Taught

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Path:
    """One trained path: for each trained token the place that predicts it, the token, and what was recorded of it.

    behaviour: log softmax(logits / T) at sampling. drawn: log-prob in the distribution drawn from. foreign: sampled by
    other weights than the ones in training. said: the head's score, nan where there is none. share: 1 / trained paths of the
    tree that hold the token. origin: who forced it, 0 for the policy's own samples. watched: what the path teaches the head.
    """

    predictor_T: Ints
    token_T: Ints
    temperature_T: Floats
    behaviour_T: Floats
    drawn_T: Floats
    foreign_T: Bools
    advantage_T: Floats
    said_T: Floats = field(default_factory=lambda: np.zeros(0))
    share_T: Floats = field(default_factory=lambda: np.zeros(0))
    origin_T: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    watched: Watched = watched.NOTHING


@dataclass(frozen=True, slots=True)
class TreePart:
    """A tree, or a part of one: unique tokens in DFS order. Token i sees j when j ≤ i and enter_j ≤ enter_i ≤ leave_j."""

    token_N: Ints
    position_N: Ints
    enter_N: Ints
    leave_N: Ints
    paths: tuple[Path, ...]
    tree: bytes = b""

    def __len__(self) -> int:
        return len(self.token_N)


def trained_leaves(leaf_L: Floats) -> list[int]:
    """Indices of the leaves that take part: those with an advantage."""
    return [int(i) for i in np.flatnonzero(np.isfinite(leaf_L))]


def nodes_of(view: TreeView, leaves: Iterable[int]) -> list[int]:
    """Indices of the nodes on the paths of `leaves`, in DFS pre-order."""
    return sorted({node for leaf in leaves for node in view.path(leaf)})


def divide(view: TreeView, leaves: Sequence[int], budget: int) -> list[list[int]]:
    """Leaves in DFS order, cut into runs whose unique tokens fit the budget; what runs share is computed once in each.

    A single path that is longer than the budget is a run of its own: it cannot be cut. One pass and no search, so what is
    saved depends on the order of branches. Of the example of Tree Training (card 40: 25 unique of 41 path tokens) it saves
    16 from a budget of 25 on and 10 from 18 on, where the published search for one shared prefix saves 12 from 29 on and 10
    from 18 on; with the shorter branch first it saves 6 from 20 on.
    """
    runs: list[list[int]] = []
    held: set[int] = set()
    size = 0
    for leaf in sorted(leaves, key=lambda i: view.leaf_node_L[i]):
        path = view.path(leaf)
        more = sum(len(view.nodes[i]) for i in path if i not in held)
        if not runs or size + more > budget:
            runs.append([])
            held, size = set(), 0
            more = sum(len(view.nodes[i]) for i in path)
        runs[-1].append(leaf)
        held.update(path)
        size += more
    return runs


def unroll(
    view: TreeView,
    leaves: Sequence[int],
    leaf_L: Floats,
    node_N: Floats | None,
    policy: bytes,
    observed: Observed = MappingProxyType({}),
    taught: Taught = PATHS,
) -> TreePart:
    """The piece that holds the paths of `leaves`. `policy` is the digest of the weights in training."""
    order = nodes_of(view, leaves)
    facts = facts_of(view, order, policy, taught)
    shares = _shares(view, leaf_L)
    return piece_of(
        view,
        order,
        [
            _path(view, leaf, facts, float(leaf_L[leaf]), node_N, shares, observed)
            for leaf in leaves
        ],
    )


def facts_of(
    view: TreeView, order: Sequence[int], policy: bytes, taught: Taught = PATHS
) -> dict[int, Path]:
    """What each of the nodes `order`, in DFS order, adds to the paths that run through it."""
    sizes = [len(view.nodes[i]) for i in order]
    starts = dict(zip(order, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True)) if order else {}
    return {i: _facts(view, i, starts, policy, taught) for i in order}


def piece_of(view: TreeView, order: Sequence[int], paths: Sequence[Path]) -> TreePart:
    """The nodes `order`, in DFS order, with paths whose places lie in them."""
    nodes = [view.nodes[i] for i in order]
    sizes = [len(n) for n in nodes]
    last = _last_descendants(view)
    empty = np.zeros(0, np.int64)
    return TreePart(
        token_N=np.concatenate([empty, *(n.tokens_T.astype(np.int64) for n in nodes)]),
        position_N=np.concatenate([empty, *(n.prefix_len + np.arange(len(n)) for n in nodes)]),
        enter_N=np.repeat(np.array(order, np.int64), sizes),
        leave_N=np.repeat(np.array([last[i] for i in order], np.int64), sizes),
        paths=tuple(paths),
        tree=view.tree.tree_id,
    )


def _shares(view: TreeView, leaf_L: Floats) -> Floats:
    """Of each node: 1 / paths through it that are trained, in whatever piece."""
    count = np.zeros(len(view.nodes))
    for leaf in trained_leaves(leaf_L[: len(view.leaves_L)]):
        count[view.path(leaf)] += 1
    return 1.0 / np.maximum(count, 1.0)


def _last_descendants(view: TreeView) -> list[int]:
    last = list(range(len(view.nodes)))
    for node in reversed(view.nodes):
        if node.parent >= 0:
            last[node.parent] = max(last[node.parent], last[node.index])
    return last


def _facts(
    view: TreeView, index: int, starts: dict[int, int], policy: bytes, taught: Taught
) -> Path:
    """What one node adds to the paths that run through it; nothing if it is context."""
    node = view.nodes[index]
    place = starts[index] + np.arange(len(node), dtype=np.int64)
    before = _end_above(view, node, starts)
    segment = node.segment
    forced = segment.kind is Kind.FORCED and segment.origin in taught.forced
    keep = slice(0 if before is not None else 1, None) if node.trained or forced else slice(0, 0)
    predictor_T = (
        np.concatenate([np.array([-1 if before is None else before]), place[:-1]])
        if len(node)
        else place
    )
    certain = (
        node.trained and not segment.sampling.temperature
    )  # a greedy token was drawn with probability 1
    drawn = np.zeros_like(segment.logprobs_T) if certain else segment.logprobs_T
    drawn = segment.sampled_logprobs_T if len(segment.sampled_logprobs_T) else drawn
    said = segment.signals.head_T
    temperature = (
        segment.sampling.temperature or 1.0
    )  # a greedy token's log-prob is that of the untempered distribution
    count = len(place[keep])
    return Path(
        predictor_T=predictor_T[keep].astype(np.int64),
        token_T=node.tokens_T[keep].astype(np.int64),
        temperature_T=np.full(count, temperature),
        behaviour_T=node.logprobs_T[keep].astype(np.float64),
        drawn_T=drawn[node.start : node.stop][keep].astype(np.float64)
        if len(drawn)
        else np.zeros(count),
        foreign_T=np.full(
            count, segment.policy != policy and not (forced and not len(segment.logprobs_T))
        ),
        advantage_T=np.zeros(count),
        said_T=said[node.start : node.stop][keep].astype(np.float64)
        if len(said)
        else np.full(count, np.nan),
        origin_T=np.full(count, int(segment.origin) if forced else 0),
    )


def _end_above(view: TreeView, node: Node, starts: dict[int, int]) -> int | None:
    """Place of the token before the node on its path; None where the path begins with it."""
    above = node.parent
    while above >= 0:
        if len(view.nodes[above]):
            return starts[above] + len(view.nodes[above]) - 1
        above = view.nodes[above].parent
    return None


def _path(
    view: TreeView,
    leaf: int,
    facts: dict[int, Path],
    advantage: float,
    node_N: Floats | None,
    share_N: Floats,
    observed: Observed,
) -> Path:
    steps = [(i, facts[i]) for i in view.path(leaf) if len(facts[i].token_T)]
    worth = [
        np.full(len(f.token_T), advantage if node_N is None else float(node_N[i])) for i, f in steps
    ]

    def joined(name: str, dtype: type) -> Any:
        return np.concatenate([np.zeros(0, dtype), *(getattr(f, name) for _, f in steps)])

    predictor_T, said_T, foreign_T, origin_T = (
        joined("predictor_T", np.int64),
        joined("said_T", np.float64),
        joined("foreign_T", np.bool_),
        joined("origin_T", np.int64),
    )
    sampled = origin_T == 0
    at, reward = observed.get(view.leaves_L[leaf], ()), float(view.rewards_L[leaf])
    return Path(
        predictor_T=predictor_T,
        token_T=joined("token_T", np.int64),
        temperature_T=joined("temperature_T", np.float64),
        behaviour_T=joined("behaviour_T", np.float64),
        drawn_T=joined("drawn_T", np.float64),
        foreign_T=foreign_T,
        advantage_T=np.concatenate([np.zeros(0), *worth]),
        said_T=said_T,
        share_T=np.concatenate(
            [np.zeros(0), *(np.full(len(f.token_T), share_N[i]) for i, f in steps)]
        ),
        origin_T=origin_T,
        watched=watched.of_path(
            at, reward, predictor_T[sampled], said_T[sampled], foreign_T[sampled]
        ),
    )
