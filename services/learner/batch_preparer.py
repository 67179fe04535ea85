"""The way of a batch from the store to a lesson: its trees, its replayed trees, its preparation.

Decoding and preparing run in the torch thread: they take seconds, and the reference policy may be
asked for the rewards.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from banyan import registry
from banyan.credit.estimate import Credit, Stale
from banyan.plugins import Estimator
from banyan.recipe import Recipe
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2
from services.learner.batch_attempt import UNSTUDIED
from services.learner.data import from_store, replay, score_metrics
from services.learner.data.prepare import (
    DecodedBatch,
    Lesson,
    batch_advantages,
    decode,
    prepare,
    recorded_stale,
)
from services.learner.ports import Store, StoredBatch
from services.learner.position import Position
from services.learner.training.trainer_thread import TorchThread

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A batch with its trees.

    batch: the batch, with what it trains on again
    decoded: the trees of its own groups
    replayed_trees: the trees of earlier batches that it trains on again
    """

    batch: StoredBatch
    decoded: DecodedBatch
    replayed_trees: Sequence[tree_pb2.Tree]

    @property
    def messages(self) -> list[tree_pb2.Tree]:
        """All trees that the batch consumes, as the store sent them."""
        return [*self.decoded.messages, *self.replayed_trees]


class BatchPreparer:
    """Fetches and prepares the batches of one run.

    held_out: digests of the rows that are never trained on
    at: position of the learner, by which the age of trees is counted
    """

    def __init__(
        self,
        recipe: Recipe,
        held_out: frozenset[bytes],
        store: Store,
        torch_thread: TorchThread,
        at: Position,
    ) -> None:
        self._recipe, self._held_out = recipe, held_out
        self._store, self._torch, self._at = store, torch_thread, at
        self._parts_left_out = 0  # the most that were logged
        optimise = recipe.optimise
        self._estimator: Estimator = registry.build(
            "optimise", optimise.advantage, optimise.advantage_settings
        )

    async def fetch(
        self, batch: StoredBatch, messages: Sequence[tree_pb2.Tree], committed: bool
    ) -> FetchedBatch:
        """Return a batch with its trees, and choose what a new one trains on again.

        messages: trees of the batch's own groups
        committed: whether the store has the batch, with what it trains on again

        Raises Refused for a held-out row or a tree that only measures.
        """
        from_store.refuse_untrainable(messages, self._held_out)
        decoded = await self._torch.run(
            lambda: decode(messages, batch.group_ids), "decoding a batch"
        )
        if not committed:
            batch = replace(batch, replayed=await self._replays(batch.ordinal, decoded))
        tree_ids = dict.fromkeys(replayed.tree_id for replayed in batch.replayed)
        replayed_trees = await self._store.trees(list(tree_ids))
        from_store.refuse_untrainable(replayed_trees, self._held_out)
        return FetchedBatch(batch, decoded, replayed_trees)

    async def _replays(self, ordinal: int, decoded: DecodedBatch) -> tuple[replay.Replayed, ...]:
        """Ask the store what a new batch trains on again; it answers from earlier batches."""
        settings = self._recipe.replay
        if settings is None:
            return ()
        request = await self._torch.run(
            lambda: replay.request(
                settings,
                seed=self._recipe.seed,
                batch=ordinal,
                fresh=decoded.groups,
                row_digests=decoded.row_digests,
                stale=self._too_old,
            )
        )
        return await self._store.replays(request)

    async def prepare(self, fetched: FetchedBatch, committed: bool) -> Lesson:
        """Return what the step on a batch learns from."""
        how = self._torch.preparation(self._estimator)
        lesson = await self._torch.run(
            lambda: prepare(
                fetched.decoded,
                how,
                replayed=fetched.batch.replayed,
                replayed_trees=fetched.replayed_trees,
                stale=self._stale(fetched.batch, committed),
                policy=self._at.digest,
                age=lambda segment: self._at.history.age(segment, self._at.step),
            ),
            "preparing a batch",
        )
        self._warn_of_parts(lesson.metrics)
        return lesson

    def _warn_of_parts(self, metrics: Mapping[str, float]) -> None:
        """Log that scorers report more parts than are measured, once for each larger number."""
        left_out = int(metrics.get(score_metrics.LEFT_OUT, 0.0))
        if left_out > self._parts_left_out:
            self._parts_left_out = left_out
            log.warning(
                "scorers report %d parts of scores, of which the first %d by name are metrics;"
                " name parts alike for all rows",
                left_out + score_metrics.MOST_PARTS,
                score_metrics.MOST_PARTS,
            )

    async def batch_advantages(
        self, groups: replay.Groups, estimator: Estimator | None
    ) -> list[Credit]:
        """Return the advantages that a step would have of groups, for leaves of any age.

        estimator: another one than the run's, or None
        """
        how = self._torch.preparation(estimator or self._estimator)
        return await self._torch.run(
            lambda: batch_advantages(
                how.with_kl_subtracted(groups),
                how.estimator,
                replay.none_stale,
                how.entropy_quantile,
                how.most_groups,
            )
        )

    def _stale(self, batch: StoredBatch, committed: bool) -> Stale:
        """Return which leaves are too old; a committed batch recorded them."""
        if not committed or UNSTUDIED in batch.summary:
            return self._too_old
        recorded = recorded_stale(batch.summary)
        return lambda _tree, leaf: leaf in recorded

    def _too_old(self, tree: Tree, leaf: Leaf) -> bool:
        age = self._at.history.age_of_path(tree, leaf, self._at.step)
        return age > self._recipe.control.max_staleness
