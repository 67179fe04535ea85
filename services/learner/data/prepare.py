"""A batch's trees, studied: advantages, the rows to train on, and the summary that its row in the store keeps. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from banyan.plugins import Estimator
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.view import TreeView
from services.learner.data import credit as credits_module
from services.learner.data import from_store, metrics, replay, step_mask
from services.learner.data.credit import Credit, ScoredTree, Stale
from services.learner.packing import packing, pairs, shaping, unroll
from services.learner.packing.head_observations import Observed
from services.learner.packing.loss_targets import PATHS, Taught

Pack = Callable[[Iterable[unroll.TreePart], int], list[packing.PackedSequence]]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one step learns from. sizes: rows of each minibatch, in order; empty where all are one."""

    rows: list[packing.PackedSequence]
    credits: list[Credit]
    metrics: dict[str, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()


def study(
    groups: Iterable[tuple[str, Sequence[ScoredTree]]],
    estimator: Estimator,
    stale: Stale,
    policy: bytes,
    budget: int,
    observed: Observed = MappingProxyType({}),
    taught: Taught = PATHS,
    minibatches: int = 1,
    pack: Pack = packing.pack,
    entropy_quantile: float = 0.0,
) -> Lesson:
    """Estimates advantages and packs the paths of groups that teach. `policy`: digest of the weights in training.
    `observed`: where the trees can teach the policy's head. `taught`: what the loss is taken on. `minibatches`: that the
    groups which teach are dealt to, in order; a group is never divided.
    `pack`: how pieces become rows. `entropy_quantile`: share of a group's steps that are masked."""
    credits = credited(groups, estimator, stale, entropy_quantile)
    by_group = [list(_pieces(credit, policy, budget, observed, taught)) for credit in credits]
    packed = [pack(pieces, budget) for pieces in _dealt(by_group, minibatches)]
    rows, sizes = [row for rows in packed for row in rows], tuple(len(rows) for rows in packed)
    return Lesson(
        rows, credits, _metrics(credits, [p for pieces in by_group for p in pieces]), sizes
    )


def credited(
    groups: Iterable[tuple[str, Sequence[ScoredTree]]],
    estimator: Estimator,
    stale: Stale,
    entropy_quantile: float = 0.0,
) -> list[Credit]:
    """The advantages of a batch's groups: estimated, whitened or shaped as the estimator asks, the surest steps masked."""
    credits = [
        credits_module.estimate(group_id, trees, estimator, stale) for group_id, trees in groups
    ]
    return step_mask.masked(credits_module.over_batch(credits, estimator), entropy_quantile)


def _dealt(
    by_group: Sequence[list[unroll.TreePart]], minibatches: int
) -> Iterator[list[unroll.TreePart]]:
    """The pieces of each minibatch: runs of groups, as many that teach in each as in any other, or one more."""
    teaching = [pieces for pieces in by_group if pieces]
    count = max(1, min(minibatches, len(teaching)))
    for number in range(count):
        run = teaching[len(teaching) * number // count : len(teaching) * (number + 1) // count]
        yield [piece for pieces in run for piece in pieces]


def _pieces(
    credit: Credit, policy: bytes, budget: int, observed: Observed, taught: Taught
) -> Iterator[unroll.TreePart]:
    if credit.advantages.skip:
        return
    for index, view in enumerate(credit.group.trees):
        leaf_L = credit.advantages.leaf_G_L[index]
        node_N = credit.advantages.node_G_N[index] if credit.advantages.node_G_N else None
        factor_N_T = (
            credit.advantages.factor_G_N_T[index] if credit.advantages.factor_G_N_T else None
        )
        if taught.pairs:
            yield from pairs.pieces(view, leaf_L, node_N, policy, budget, taught)
            continue
        for leaves in unroll.divide(view, unroll.trained_leaves(leaf_L), budget):
            piece = unroll.unroll(view, leaves, leaf_L, node_N, policy, observed, taught)
            yield (
                piece
                if factor_N_T is None
                else shaping.shaped(piece, view, leaves, factor_N_T, taught)
            )


def _metrics(credits: Sequence[Credit], pieces: Sequence[unroll.TreePart]) -> dict[str, float]:
    views = [view for credit in credits for view in credit.group.trees]
    rewards = np.concatenate([np.zeros(0), *(view.rewards_L for view in views)])
    scored = rewards[np.isfinite(rewards)]
    now = np.concatenate(
        [np.zeros(0), *(view.rewards_L for credit in credits for view in _fresh(credit))]
    )
    now = now[np.isfinite(now)]
    packed = sum(len(p) for p in pieces)
    unique = sum(_needed(credit) for credit in credits)
    reward = (
        {"reward": float(now.mean())} if len(now) else {}
    )  # a batch that nobody could score has none
    return reward | {
        "leaves": float(len(rewards)),
        "unscorable_leaves": float(len(rewards) - len(scored)),
        "stale_leaves": float(sum(len(c.stale) for c in credits)),
        "groups": float(len(credits)),
        "groups_skipped": float(sum(bool(c.advantages.skip) for c in credits)),
        "unique_tokens": float(sum(v.unique_tokens for v in views)),
        "path_tokens": float(sum(v.path_tokens for v in views)),
        "packed_tokens": float(packed),
        "repeated_tokens": float(max(0, packed - unique)),
        "replay_share": _replayed(credits),
        "trained_path_tokens": float(sum(len(path.token_T) for p in pieces for path in p.paths)),
    }


def _fresh(credit: Credit) -> list[TreeView]:
    """What the policy of today made of the group."""
    return [view for index, view in enumerate(credit.group.trees) if index not in credit.replayed]


def _replayed(credits: Sequence[Credit]) -> float:
    """Share of the trained path tokens that stand on paths of replayed trees."""
    again = total = 0
    for credit in credits:
        for index, leaf_L in enumerate(
            () if credit.advantages.skip else credit.advantages.leaf_G_L
        ):
            view = credit.group.trees[index]
            nodes = (
                view.nodes[i] for leaf in unroll.trained_leaves(leaf_L) for i in view.path(leaf)
            )
            tokens = sum(len(node) for node in nodes if node.trained)
            total, again = total + tokens, again + tokens * (index in credit.replayed)
    return again / total if total else 0.0


def _needed(credit: Credit) -> int:
    """Unique tokens on the trained paths of a group that teaches: what packing computes where nothing is divided."""
    if credit.advantages.skip:
        return 0
    pairs = zip(credit.group.trees, credit.advantages.leaf_G_L, strict=True)
    return sum(
        len(v.nodes[i])
        for v, leaf_L in pairs
        for i in unroll.nodes_of(v, unroll.trained_leaves(leaf_L))
    )


def summary(lesson: Lesson, step: int) -> dict[str, Any]:
    """What the batch's row says of its advantages, for people and audits."""
    return {"step": step, "metrics": lesson.metrics, "groups": [_group(c) for c in lesson.credits]}


def _group(credit: Credit) -> dict[str, Any]:
    values = np.concatenate([np.zeros(0), *credit.advantages.leaf_G_L])
    values = values[np.isfinite(values)]
    rewards = np.concatenate([np.zeros(0), *(v.rewards_L for v in credit.group.trees)])
    scored = rewards[np.isfinite(rewards)]
    said: dict[str, Any] = {
        "group_id": credit.group.group_id,
        "leaves": len(rewards),
        "scored": len(scored),
    }
    if credit.replayed:
        said["replayed_trees"] = len(credit.replayed)
    if len(scored):
        said["reward_mean"] = float(scored.mean())
    if len(values):
        said |= {"advantage_min": float(values.min()), "advantage_max": float(values.max())}
    if credit.stale:
        said["stale"] = [[leaf.segment.hex(), leaf.end] for leaf in credit.stale]
    return said | ({"skip": credit.advantages.skip} if credit.advantages.skip else {})


def recorded_stale(said: Mapping[str, Any]) -> frozenset[Leaf]:
    """The leaves that a stored batch left out for their age: a replay leaves out the same ones."""
    pairs = (pair for group in said.get("groups", ()) for pair in group.get("stale", ()))
    return frozenset(Leaf(bytes.fromhex(segment), int(end)) for segment, end in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How the batches of a run are prepared for its trainer.

    estimator: advantages of the trees of a group
    budget: tokens that a packed sequence may hold; 0 where paths are trained singly
    pack: pieces of trees → packed sequences
    price: tree → the tree with the rewards that advantages are estimated from
    taught: tokens that the loss is taken on
    minibatches: optimizer steps that the groups are dealt to
    entropy_quantile: share of a group's steps that are masked
    trains_head: whether the trees teach the policy's value head
    """

    estimator: Estimator
    budget: int
    pack: Pack
    price: Callable[[ScoredTree], ScoredTree]
    taught: Taught = PATHS
    minibatches: int = 1
    entropy_quantile: float = 0.0
    trains_head: bool = False

    def priced(self, groups: replay.Groups) -> list[tuple[str, list[ScoredTree]]]:
        """Return the groups with the rewards that advantages are estimated from."""
        return [(group_id, [self.price(tree) for tree in trees]) for group_id, trees in groups]


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """The trees of a batch's own groups, decoded once: decoding hashes every token.

    messages: stored trees, in the order of groups and indices
    groups: decoded trees by group; dropped ones are left out
    """

    messages: Sequence[tree_pb2.Tree]
    groups: Sequence[tuple[str, Sequence[ScoredTree]]]

    @property
    def row_digests(self) -> dict[str, bytes]:
        """The digest of each group's row."""
        return {message.spec.group_id: message.spec.row_digest for message in self.messages}


def decode(messages: Sequence[tree_pb2.Tree], group_ids: Sequence[str]) -> DecodedBatch:
    """Return the decoded trees of a batch. Raises InvalidInput for a tree that is damaged."""
    return DecodedBatch(messages, from_store.by_group(messages, group_ids))


def prepare(
    batch: DecodedBatch,
    how: Preparation,
    *,
    replayed: Sequence[replay.Replayed] = (),
    replayed_trees: Sequence[tree_pb2.Tree] = (),
    stale: Stale,
    policy: bytes,
    age: metrics.Age,
) -> Lesson:
    """Return what one step learns from a batch, with the metrics of its sampling.

    replayed: trees of earlier batches that it trains on again
    replayed_trees: the same, as the store sent them
    stale: whether a leaf is too old to take part
    policy: digest of the weights in training
    age: steps that a segment's policy is behind them
    """
    earlier = {tree.spec.tree_id: from_store.scored_tree(tree) for tree in replayed_trees}
    groups = replay.joined(batch.groups, replayed, earlier, stale)
    observed: Observed = {}
    if how.trains_head:
        own_trees = [tree for _, trees in batch.groups for tree in trees]
        observed = from_store.observed(batch.messages, own_trees)
    lesson = study(
        how.priced(groups),
        how.estimator,
        stale,
        policy,
        how.budget,
        observed=observed,
        taught=how.taught,
        minibatches=how.minibatches,
        pack=how.pack,
        entropy_quantile=how.entropy_quantile,
    )
    sampling = metrics.of_batch(lesson.credits, age, {tree.tree_id for tree in replayed})
    return replace(lesson, metrics=lesson.metrics | sampling)
