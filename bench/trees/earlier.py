"""What earlier batches tell a run in one process: the rows to come, and groups to train on again.

The decisions are those of the services; only where they look is memory instead of the store.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from banyan import registry
from banyan.credit.estimate import ScoredTree
from banyan.draws import Draws
from banyan.errors import NotReady
from banyan.plugins import Allocation, Budget, PromptStats, StoredGroup, traits
from banyan.recipe import Recipe
from banyan.segment import Kind
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from bench.trees.scoring import left_to_right
from services.gateway.allocation.allocation import check
from services.gateway.allocation.allocator import RIGHT
from services.gateway.allocation.history import History
from services.gateway.tasks.dataset import Examples, Prompts
from services.learner.data import replay
from services.treestore.training.replay.draw import ConsumedGroup, Draw, newest

Groups = Sequence[tuple[str, Sequence[ScoredTree]]]


@dataclass(frozen=True)
class Batch:
    """A batch that was grown.

    number: ordinal of the batch
    specs: its trees, as they were opened
    groups: its groups with their trees, in the order of ordinals
    """

    number: int
    specs: Sequence[tree_pb2.TreeSpec]
    groups: Groups

    @property
    def ordinals(self) -> dict[str, int]:
        """Ordinal of each group."""
        return {spec.group_id: spec.group_ordinal for spec in self.specs}

    @property
    def row_digests(self) -> dict[str, bytes]:
        """Digest of each group's row."""
        return {spec.group_id: spec.row_digest for spec in self.specs}


class Rows:
    """The rows of a run's groups, as its curriculum chooses them.

    Raises NotReady for a curriculum that asks for answers, which only the store keeps.
    """

    def __init__(self, recipe: Recipe, examples: Examples) -> None:
        control = recipe.control
        self._recipe, self._examples = recipe, examples
        self._curriculum: Any = registry.build(
            "control", control.curriculum, control.curriculum_settings
        )
        if getattr(self._curriculum, "solved_chars", 0):
            raise NotReady(
                f"control.curriculum {control.curriculum} puts answers in front of prompts: run"
                f" recipe {recipe.name} with services"
            )
        self._fixed = bool(traits.attribute(self._curriculum, "fixed"))
        self._history = History(float(getattr(self._curriculum, "right", RIGHT)))

    def of(self, batch: int) -> list[Allocation]:
        """Return the allocations of a batch's groups, after all batches before it."""
        generate, groups = self._recipe.generate, self._recipe.control.groups_per_batch
        rows = self._examples.train
        budget = Budget(
            ordinals=range(batch * groups, (batch + 1) * groups),
            batches=batch,
            groups_per_batch=groups,
            trees=generate.trees,
            max_new_tokens=generate.max_new_tokens,
            settings=generate.settings,
        )
        stats = PromptStats(rows, Prompts(self._examples), self._history.stats)
        chosen = self._curriculum.allocate(stats, budget, Draws(self._recipe.seed))
        return check(chosen, self._recipe, budget, len(rows))

    def learn(self, batch: Batch, allocations: Sequence[Allocation]) -> None:
        """Keep what a batch tells of its rows, if the curriculum asks."""
        if self._fixed:
            return
        ordinals = batch.ordinals
        for (group_id, trees), allocation in zip(batch.groups, allocations, strict=True):
            ends = [(tree, leaf) for tree in trees for leaf in _scored(tree)]
            self._history.record_allocation(ordinals[group_id], allocation.row)
            self._history.record_outcome(
                ordinals[group_id],
                batch.number,
                rewards=_rewards(trees),
                lengths=[_length(tree.tree, leaf) for tree, leaf in ends],
            )


@dataclass
class Replays:
    """Groups that earlier batches of a run consumed.

    Raises NotReady for a recipe that lets successes join other groups, which the store finds.
    """

    recipe: Recipe
    _consumed: list[ConsumedGroup[ScoredTree]] = field(default_factory=list)
    _ordinals: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.recipe.replay is not None and self.recipe.replay.rescue:
            raise NotReady(
                f"recipe {self.recipe.name} has replay.rescue: run it with services, whose store"
                " finds the successes"
            )

    def joined(self, batch: Batch) -> Groups:
        """Return the groups that a batch trains on: its own, and those that it replays."""
        settings = self.recipe.replay
        if settings is None:
            return batch.groups
        request = replay.request(
            settings,
            seed=self.recipe.seed,
            batch=batch.number,
            fresh=batch.groups,
            row_digests=batch.row_digests,
        )
        groups = {group.group_id: group.trees for group in self._drawn(request)}
        trees = {tree.tree.tree_id: tree for members in groups.values() for tree in members}
        entries = [
            replay.Replayed(tree.tree.tree_id, group_id)
            for group_id, members in groups.items()
            for tree in members
        ]
        self._keep(batch)
        return replay.joined(batch.groups, entries, trees)

    def _drawn(self, request: replay.ReplayRequest) -> Iterator[ConsumedGroup[ScoredTree]]:
        settings, first = request.replay, request.first_batch
        young = (group for group in reversed(self._consumed) if group.batch >= first)
        kept = {group.group_id: group for group in newest(young, settings.capacity)}
        stored = [
            StoredGroup(
                group.group_id,
                ordinal=self._ordinals[group.group_id],
                row=group.row,
                batch=group.batch,
                rewards=tuple(_rewards(group.trees)),
            )
            for group in kept.values()
        ]
        stored.sort(key=lambda group: (group.batch, group.ordinal))
        draw = Draw(
            settings.policy,
            settings.settings,
            count=request.groups,
            seed=request.seed,
            batch=request.batch,
        )
        yield from (kept[group_id] for group_id in draw.of(stored))

    def _keep(self, batch: Batch) -> None:
        rows = batch.row_digests
        self._ordinals |= batch.ordinals
        self._consumed += [
            ConsumedGroup(group_id, rows[group_id], batch.number, trees)
            for group_id, trees in batch.groups
        ]


def _scored(tree: ScoredTree) -> list[Leaf]:
    rewarded = [leaf for leaf in tree.leaves if tree.rewards[leaf] is not None]
    return left_to_right(tree.tree, rewarded)


def _rewards(trees: Sequence[ScoredTree]) -> list[float]:
    """Return the rewards of a group's leaves, in the order of trees and places."""
    return [
        reward
        for tree in trees
        for leaf in _scored(tree)
        if (reward := tree.rewards[leaf]) is not None
    ]


def _length(tree: Tree, leaf: Leaf) -> int:
    """Return the tokens of an answer."""
    pieces = tree.pieces(leaf.segment, leaf.end)
    return sum(end for segment, end in pieces if segment.kind in (Kind.POLICY, Kind.FORCED))
