"""Unrolls a tree into one DFS sequence that holds every token once, with an index back to paths.

The log-prob of a node's first token is predicted from the last token of its PARENT NODE on the
path, never from the packed neighbour. Siblings that share a predictor and a token share one
prediction. Pure numpy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from banyan.segment import Kind
from banyan.view import Node, TreeView
from services.learner.packing import head_observations
from services.learner.packing.head_observations import (
    NO_OBSERVATIONS,
    HeadObservations,
    LeafObservations,
)
from services.learner.packing.loss_targets import PATHS, LossTargets

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The trained tokens of one path, or of one node's stretch of it, with what was recorded.

    predictor_T: place whose logits predict the token.
    token_T: the token.
    temperature_T: temperature of its logits.
    behaviour_T: log softmax(logits / temperature) at sampling.
    drawn_T: log-prob in the distribution drawn from.
    foreign_T: true if other weights than the ones in training sampled it.
    advantage_T: its advantage.
    head_T: score of the value head at sampling; nan if none.
    share_T: 1 / trained paths of the tree that hold the token.
    origin_T: origin of a forced token; 0 for the policy's own samples.
    head_observations: what the path teaches the value head.
    """

    predictor_T: Ints
    token_T: Ints
    temperature_T: Floats
    behaviour_T: Floats
    drawn_T: Floats
    foreign_T: Bools
    advantage_T: Floats
    head_T: Floats = field(default_factory=lambda: np.zeros(0))
    share_T: Floats = field(default_factory=lambda: np.zeros(0))
    origin_T: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    head_observations: HeadObservations = NO_OBSERVATIONS


@dataclass(frozen=True, slots=True)
class TreePart:
    """A tree or a part of one: `_U` unique tokens in DFS order.

    Token i attends to token j if j ≤ i and enter_j ≤ enter_i ≤ leave_j.

    token_U, position_U: token, and its position on its path.
    enter_U, leave_U: node of the token, and the last node below that one, in DFS pre-order.
    paths: trained paths, with places in this part.
    tree: id of the tree.
    """

    token_U: Ints
    position_U: Ints
    enter_U: Ints
    leave_U: Ints
    paths: tuple[Path, ...]
    tree: bytes = b""

    def __len__(self) -> int:
        return len(self.token_U)


def trained_leaves(leaf_L: Floats) -> list[int]:
    """Return the indices of the leaves that take part: those with an advantage."""
    return [int(i) for i in np.flatnonzero(np.isfinite(leaf_L))]


def nodes_of(view: TreeView, leaves: Iterable[int]) -> list[int]:
    """Return the indices of the nodes on the paths of `leaves`, in DFS pre-order."""
    return sorted({node for leaf in leaves for node in view.path(leaf)})


def divide(view: TreeView, leaves: Sequence[int], budget: int) -> list[list[int]]:
    """Cut leaves in DFS order into runs whose unique tokens fit the budget.

    Tokens that runs share are computed once in each. A single path longer than the budget is a run
    of its own: it cannot be cut. One pass and no search, so the saving depends on the order of
    branches. Of the example in Tree Training (arXiv 2511.00413; 25 unique of 41
    path tokens) it saves 16 from a budget of 25 on and 10 from 18 on. The published search for one
    shared prefix saves 12 from 29 on and 10 from 18 on; with the shorter branch first it saves 6
    from 20 on.
    """
    runs: list[list[int]] = []
    nodes: set[int] = set()
    size = 0
    for leaf in sorted(leaves, key=lambda i: view.leaf_node_L[i]):
        path = view.path(leaf)
        added = sum(len(view.nodes[i]) for i in path if i not in nodes)
        if not runs or size + added > budget:
            runs.append([])
            nodes, size = set(), 0
            added = sum(len(view.nodes[i]) for i in path)
        runs[-1].append(leaf)
        nodes.update(path)
        size += added
    return runs


def unroll(
    view: TreeView,
    leaves: Sequence[int],
    leaf_L: Floats,
    node_N: Floats | None,
    policy: bytes,
    observations: LeafObservations = MappingProxyType({}),
    targets: LossTargets = PATHS,
) -> TreePart:
    """Return the part that holds the paths of `leaves`.

    leaf_L, node_N: advantages of all leaves; of all nodes, if the estimator gives them to nodes.
    policy: digest of the weights in training.
    observations: observations for the value head, by leaf.
    targets: tokens that the loss is taken on.
    """
    order = nodes_of(view, leaves)
    stretches = node_stretches(view, order, policy, targets)
    share_N = _shares(view, leaf_L)
    paths = []
    for leaf in leaves:
        advantage_N = np.full(len(view.nodes), leaf_L[leaf]) if node_N is None else node_N
        path = _join(view.path(leaf), stretches, advantage_N, share_N)
        paths.append(_observe(path, view, leaf, observations))
    return part_of(view, order, paths)


def node_stretches(
    view: TreeView, order: Sequence[int], policy: bytes, targets: LossTargets = PATHS
) -> dict[int, Path]:
    """Return what each of the nodes `order`, in DFS order, adds to the paths through it."""
    sizes = [len(view.nodes[i]) for i in order]
    starts = dict(zip(order, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True)) if order else {}
    return {i: _stretch(view, i, starts, policy, targets) for i in order}


def part_of(view: TreeView, order: Sequence[int], paths: Sequence[Path]) -> TreePart:
    """Return the part of the nodes `order`, in DFS order, with paths whose places lie in it."""
    nodes = [view.nodes[i] for i in order]
    sizes = [len(n) for n in nodes]
    last = _last_descendants(view)
    empty = np.zeros(0, np.int64)
    return TreePart(
        token_U=np.concatenate([empty, *(n.tokens_T.astype(np.int64) for n in nodes)]),
        position_U=np.concatenate([empty, *(n.prefix_len + np.arange(len(n)) for n in nodes)]),
        enter_U=np.repeat(np.array(order, np.int64), sizes),
        leave_U=np.repeat(np.array([last[i] for i in order], np.int64), sizes),
        paths=tuple(paths),
        tree=view.tree.tree_id,
    )


def _shares(view: TreeView, leaf_L: Floats) -> Floats:
    """Return 1 / trained paths through each node, in whatever part they are."""
    count_N = np.zeros(len(view.nodes))
    for leaf in trained_leaves(leaf_L[: len(view.leaves_L)]):
        count_N[view.path(leaf)] += 1
    return 1.0 / np.maximum(count_N, 1.0)


def _last_descendants(view: TreeView) -> list[int]:
    last = list(range(len(view.nodes)))
    for node in reversed(view.nodes):
        if node.parent >= 0:
            last[node.parent] = max(last[node.parent], last[node.index])
    return last


def _stretch(
    view: TreeView, index: int, starts: dict[int, int], policy: bytes, targets: LossTargets
) -> Path:
    """Return what one node adds to the paths through it; nothing if it is context."""
    node = view.nodes[index]
    segment = node.segment
    place = starts[index] + np.arange(len(node), dtype=np.int64)
    before = _end_above(view, node, starts)
    is_forced_target = segment.kind is Kind.FORCED and segment.origin in targets.forced
    kept = slice(0, 0)
    if node.trained or is_forced_target:
        kept = slice(0 if before is not None else 1, None)  # without its very first token
    count = len(place[kept])
    predictor = place
    if len(node):
        predictor = np.concatenate([np.array([-1 if before is None else before]), place[:-1]])

    def recorded(values: npt.NDArray[np.float32], default: float) -> Floats:
        if not len(values):
            return np.full(count, default)
        return values[node.start : node.stop][kept].astype(np.float64)

    own_logprobs = is_forced_target and not len(segment.logprobs_T)
    return Path(
        predictor_T=predictor[kept].astype(np.int64),
        token_T=node.tokens_T[kept].astype(np.int64),
        # The recorded log-prob of a greedy token is that of the untempered distribution.
        temperature_T=np.full(count, segment.sampling.temperature or 1.0),
        behaviour_T=node.logprobs_T[kept].astype(np.float64),
        drawn_T=recorded(_drawn_logprobs(node), 0.0),
        foreign_T=np.full(count, segment.policy != policy and not own_logprobs),
        advantage_T=np.zeros(count),
        head_T=recorded(segment.signals.head_T, np.nan),
        origin_T=np.full(count, int(segment.origin) if is_forced_target else 0),
    )


def _drawn_logprobs(node: Node) -> npt.NDArray[np.float32]:
    """Return the log-probs of a segment's tokens in the distribution that they were drawn from."""
    segment = node.segment
    if len(segment.sampled_logprobs_T):
        return segment.sampled_logprobs_T
    if node.trained and not segment.sampling.temperature:  # greedy: drawn with probability 1
        return np.zeros_like(segment.logprobs_T)
    return segment.logprobs_T


def _end_above(view: TreeView, node: Node, starts: dict[int, int]) -> int | None:
    """Return the place of the token before the node; None for the first node of the path."""
    above = node.parent
    while above >= 0:
        if len(view.nodes[above]):
            return starts[above] + len(view.nodes[above]) - 1
        above = view.nodes[above].parent
    return None


def _join(
    nodes: Sequence[int], stretches: dict[int, Path], advantage_N: Floats, share_N: Floats
) -> Path:
    """Join the stretches of a path's nodes."""
    steps = [(i, stretches[i]) for i in nodes if len(stretches[i].token_T)]

    def joined(name: str, dtype: type) -> Any:
        return np.concatenate([np.zeros(0, dtype), *(getattr(step, name) for _, step in steps)])

    def spread(value_N: Floats) -> Floats:
        stretched = (np.full(len(step.token_T), float(value_N[i])) for i, step in steps)
        return np.concatenate([np.zeros(0), *stretched])

    return Path(
        predictor_T=joined("predictor_T", np.int64),
        token_T=joined("token_T", np.int64),
        temperature_T=joined("temperature_T", np.float64),
        behaviour_T=joined("behaviour_T", np.float64),
        drawn_T=joined("drawn_T", np.float64),
        foreign_T=joined("foreign_T", np.bool_),
        advantage_T=spread(advantage_N),
        head_T=joined("head_T", np.float64),
        share_T=spread(share_N),
        origin_T=joined("origin_T", np.int64),
    )


def _observe(path: Path, view: TreeView, leaf: int, observations: LeafObservations) -> Path:
    """Return the path with its observations for the value head."""
    observed = observations.get(view.leaves_L[leaf], ())
    if not observed:
        return path
    sampled_T = path.origin_T == 0
    return replace(
        path,
        head_observations=head_observations.of_path(
            observed,
            reward=float(view.rewards_L[leaf]),
            predictor_T=path.predictor_T[sampled_T],
            head_T=path.head_T[sampled_T],
            foreign_T=path.foreign_T[sampled_T],
        ),
    )
