"""Prepares a batch: advantages, packed sequences to train on, and the summary kept in the store.

    decode            stored trees → scored trees, by group
    prepare           replayed trees join; rewards lose the KL where a recipe asks for it
    batch_advantages  an estimator's advantages, group by group; whitened or shaped over the batch;
                      the surest steps masked
    build_lesson      the trees of groups that teach → parts → packed sequences, by minibatch
    summary           what the store keeps of the batch, from which a replay prepares the same

Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from banyan.credit import estimate as credits_module
from banyan.credit.estimate import Credit, Floats, ScoredTree, Stale
from banyan.plugins import Estimator
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.view import TreeView
from services.learner.data import from_store, metrics, replay, score_metrics, step_mask
from services.learner.data import most_groups as most_groups_module
from services.learner.data.as_scored import as_scored
from services.learner.packing import packing, pairs, shaping, unroll
from services.learner.packing.head_observations import LeafObservations
from services.learner.packing.loss_targets import PATHS, LossTargets
from services.learner.packing.packing import PackedSequence
from services.learner.packing.silent import NONE, Silent, silent
from services.learner.packing.unroll import TreePart

Pack = Callable[[Iterable[TreePart], int], list[PackedSequence]]


@dataclass(frozen=True, slots=True)
class Lesson:
    """The material of one step.

    sequences: packed sequences to train on, minibatch by minibatch.
    credits: the groups with their advantages.
    metrics: sizes and rewards of the batch.
    sizes: sequences of each minibatch, in order; empty if all are one minibatch.
    silent: size of the groups that teach nothing, where the loss counts them.
    """

    sequences: list[PackedSequence]
    credits: list[Credit]
    metrics: dict[str, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    silent: Silent = NONE


def build_lesson(
    groups: Iterable[tuple[str, Sequence[ScoredTree]]],
    estimator: Estimator,
    stale: Stale,
    policy: bytes,
    budget: int,
    *,
    observations: LeafObservations = MappingProxyType({}),
    targets: LossTargets = PATHS,
    minibatches: int = 1,
    pack: Pack = packing.pack,
    entropy_quantile: float = 0.0,
    most_groups: int = 0,
) -> Lesson:
    """Estimate advantages and pack the paths of the groups that teach.

    stale: tells which leaves are too old to take part.
    policy: digest of the weights in training.
    budget: most tokens of a packed sequence.
    observations: what the trees can teach the value head, by leaf.
    targets: tokens that the loss is taken on.
    minibatches: minibatches that the teaching groups are dealt to, in order; no group is divided.
    pack: turns parts of trees into sequences.
    entropy_quantile: share of a group's steps that are masked.
    most_groups: groups that are trained on at most; 0 for all that teach.
    """
    credits = batch_advantages(groups, estimator, stale, entropy_quantile, most_groups)
    by_group = [list(_parts(credit, policy, budget, observations, targets)) for credit in credits]
    packed = [pack(parts, budget) for parts in _minibatches(by_group, minibatches)]
    return Lesson(
        sequences=[sequence for sequences in packed for sequence in sequences],
        credits=credits,
        metrics=_metrics(credits, [part for parts in by_group for part in parts]),
        sizes=tuple(len(sequences) for sequences in packed),
        silent=silent(_silent_parts(credits, policy, targets)) if targets.silent else NONE,
    )


def batch_advantages(
    groups: Iterable[tuple[str, Sequence[ScoredTree]]],
    estimator: Estimator,
    stale: Stale,
    entropy_quantile: float = 0.0,
    most_groups: int = 0,
) -> list[Credit]:
    """Return the advantages of a batch's groups, as a step trains on them.

    Estimated, those beyond the most groups skipped, whitened or shaped as the estimator asks, and
    the surest steps masked.
    """
    estimated = [
        credits_module.estimate(group_id, trees, estimator, stale) for group_id, trees in groups
    ]
    credits = most_groups_module.capped(estimated, most_groups)
    return step_mask.masked(credits_module.over_batch(credits, estimator), entropy_quantile)


def _minibatches(by_group: Sequence[list[TreePart]], minibatches: int) -> Iterator[list[TreePart]]:
    """Yield the parts of each minibatch.

    Minibatches are runs of groups, equal in the number that teach up to one.
    """
    teaching = [parts for parts in by_group if parts]
    count = max(1, min(minibatches, len(teaching)))
    for number in range(count):
        first = len(teaching) * number // count
        last = len(teaching) * (number + 1) // count
        yield [part for parts in teaching[first:last] for part in parts]


def _parts(
    credit: Credit,
    policy: bytes,
    budget: int,
    observations: LeafObservations,
    targets: LossTargets,
) -> Iterator[TreePart]:
    """Yield the parts of a group's trees that are trained on."""
    advantages = credit.advantages
    if advantages.skip:
        return
    for index, view in enumerate(credit.group.trees):
        leaf_L = advantages.leaf_G_L[index]
        node_N: Floats | None = advantages.node_G_N[index] if advantages.node_G_N else None
        if targets.pairs:
            yield from pairs.parts(
                view, leaf_L, node_N, policy=policy, budget=budget, targets=targets
            )
            continue
        for leaves in unroll.divide(view, unroll.trained_leaves(leaf_L), budget):
            part = unroll.unroll(view, leaves, leaf_L, node_N, policy, observations, targets)
            if advantages.factor_G_N_T:
                factor_N_T = advantages.factor_G_N_T[index]
                part = shaping.shaped(part, view, leaves, factor_N_T, targets)
            yield part


def _silent_parts(
    credits: Sequence[Credit], policy: bytes, targets: LossTargets
) -> Iterator[TreePart]:
    """Yield the trees of the groups that teach nothing, without those that are left out as too
    many."""
    for credit in credits:
        if credit.advantages.skip in ("", most_groups_module.BEYOND):
            continue
        for view, leaf_L in zip(credit.group.trees, credit.advantages.leaf_G_L, strict=True):
            leaves = unroll.trained_leaves(leaf_L)
            yield unroll.unroll(view, leaves, leaf_L, None, policy, targets=targets)


def _metrics(credits: Sequence[Credit], parts: Sequence[TreePart]) -> dict[str, float]:
    views = [view for credit in credits for view in credit.group.trees]
    rewards = _rewards(views)
    scored = _scored(rewards)
    stale, packed = sum(len(c.stale) for c in credits), sum(len(part) for part in parts)
    unique = sum(_needed_tokens(credit) for credit in credits)
    return _reward(credits) | {
        "leaves": float(len(rewards)),
        "unscorable_leaves": float(len(rewards) - len(scored) - stale),
        "stale_leaves": float(stale),
        "groups": float(len(credits)),
        "groups_skipped": float(sum(bool(c.advantages.skip) for c in credits)),
        "unique_tokens": float(sum(v.unique_tokens for v in views)),
        "path_tokens": float(sum(v.path_tokens for v in views)),
        "packed_tokens": float(packed),
        "repeated_tokens": float(max(0, packed - unique)),
        "trained_path_tokens": float(sum(len(path.token_T) for p in parts for path in p.paths)),
    }


def _reward(credits: Sequence[Credit]) -> dict[str, float]:
    """Return the rewards' mean and deviations; none for a batch without a single score."""
    by_group = [_scored(_rewards(_fresh(credit))) for credit in credits]
    fresh = np.concatenate([np.zeros(0), *by_group])
    found = {"reward": float(fresh.mean()), "reward_std": float(fresh.std())} if len(fresh) else {}
    compared = [float(group.std()) for group in by_group if len(group) > 1]
    return found | ({"reward_group_std": float(np.mean(compared))} if compared else {})


def _rewards(views: Sequence[TreeView]) -> Floats:
    return np.concatenate([np.zeros(0), *(view.rewards_L for view in views)])


def _scored(rewards: Floats) -> Floats:
    return np.asarray(rewards[np.isfinite(rewards)])


def _fresh(credit: Credit) -> list[TreeView]:
    """Return the trees of the group that are not replayed."""
    return [view for index, view in enumerate(credit.group.trees) if index not in credit.replayed]


def _needed_tokens(credit: Credit) -> int:
    """Return the unique tokens on a group's trained paths: what packing computes undivided."""
    if credit.advantages.skip:
        return 0
    return sum(
        len(view.nodes[i])
        for view, leaf_L in zip(credit.group.trees, credit.advantages.leaf_G_L, strict=True)
        for i in unroll.nodes_of(view, unroll.trained_leaves(leaf_L))
    )


def summary(lesson: Lesson, step: int) -> dict[str, Any]:
    """Return the summary of a batch's advantages that its row in the store keeps."""
    return {"step": step, "metrics": lesson.metrics, "groups": [_group(c) for c in lesson.credits]}


def _group(credit: Credit) -> dict[str, Any]:
    values = np.concatenate([np.zeros(0), *credit.advantages.leaf_G_L])
    values = values[np.isfinite(values)]
    rewards = _rewards(credit.group.trees)
    scored = _scored(rewards)
    entry: dict[str, Any] = {
        "group_id": credit.group.group_id,
        "leaves": len(rewards),
        "scored": len(scored),
    }
    if credit.replayed:
        entry["replayed_trees"] = len(credit.replayed)
    if len(scored):
        entry["reward_mean"] = float(scored.mean())
    if len(values):
        entry["advantage_min"] = float(values.min())
        entry["advantage_max"] = float(values.max())
    if credit.stale:
        entry["stale"] = [[leaf.segment.hex(), leaf.end] for leaf in credit.stale]
    if credit.advantages.skip:
        entry["skip"] = credit.advantages.skip
    return entry


def recorded_stale(summary: Mapping[str, Any]) -> frozenset[Leaf]:
    """Return the leaves that a stored batch left out for their age, as a replay must too."""
    pairs = (pair for group in summary.get("groups", ()) for pair in group.get("stale", ()))
    return frozenset(Leaf(bytes.fromhex(segment), int(end)) for segment, end in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Preparation of a run's batches for its trainer.

    estimator: advantages of the trees of a group
    budget: tokens that a packed sequence may hold; 0 where paths are trained singly
    pack: turns parts of trees into packed sequences
    subtract_kl: tree → the tree with the rewards that advantages are estimated from
    targets: tokens that the loss is taken on
    minibatches: optimizer steps that the groups are dealt to
    entropy_quantile: share of a group's steps that are masked
    most_groups: groups that are trained on at most; 0 for all that teach
    trains_head: whether the trees teach the policy's value head
    """

    estimator: Estimator
    budget: int
    pack: Pack
    subtract_kl: Callable[[ScoredTree], ScoredTree]
    targets: LossTargets = PATHS
    minibatches: int = 1
    entropy_quantile: float = 0.0
    most_groups: int = 0
    trains_head: bool = False

    def with_kl_subtracted(self, groups: replay.Groups) -> list[tuple[str, list[ScoredTree]]]:
        """Return the groups with the rewards that advantages are estimated from."""
        return [
            (group_id, [self.subtract_kl(tree) for tree in trees]) for group_id, trees in groups
        ]


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
    observations: LeafObservations = {}
    if how.trains_head:
        own_trees = [tree for _, trees in batch.groups for tree in trees]
        observations = from_store.leaf_observations(batch.messages, own_trees)
    penalised = how.with_kl_subtracted(groups)
    lesson = build_lesson(
        penalised,
        how.estimator,
        stale,
        policy,
        how.budget,
        observations=observations,
        targets=how.targets,
        minibatches=how.minibatches,
        pack=how.pack,
        entropy_quantile=how.entropy_quantile,
        most_groups=how.most_groups,
    )
    seen = as_scored(lesson.credits, groups, penalised)
    sampling = metrics.of_batch(seen, age, {tree.tree_id for tree in replayed})
    scores = score_metrics.of_trees(batch.messages)
    return replace(lesson, metrics=lesson.metrics | _reward(seen) | sampling | scores)
