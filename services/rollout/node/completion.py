"""Completion and return of trees.

A node acknowledges an assignment only when the store has the whole tree, and publishes again what
the store lacks (docs/protocol.md, Ending a tree).
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from banyan.errors import BanyanError, NotFound, Refused, TemporaryError
from banyan.reasons import Reason
from services.rollout.clients import messages
from services.rollout.clients.blobs import Blobs
from services.rollout.clients.publisher import Publisher
from services.rollout.growth import return_reasons
from services.rollout.node.active_trees import ActiveTree, ActiveTrees, TreeState
from services.rollout.node.config import NodeConfig
from services.rollout.ports import Ingested, Store
from services.rollout.timeouts import BackgroundTasks

log = logging.getLogger(__name__)

_PAUSE_S = 0.25  # the store ingests first: a call at once would be made twice
_WAIT_S = 10.0
_RETRY_S = 1.0
_MOST_REPEATS = 5
_LAST_EVENTS_S = 2.0


class TreeCompleter:
    """The end of each claim: the tree is complete in the store, or returned to it.

    config: configuration of the node.
    store: the tree store.
    publisher: publisher of events.
    blobs: sender of large segments.
    trees: trees of the node.
    tasks: tasks of the node, to which the waits are added.
    """

    def __init__(
        self,
        config: NodeConfig,
        store: Store,
        publisher: Publisher,
        *,
        blobs: Blobs,
        trees: ActiveTrees,
        tasks: BackgroundTasks,
    ) -> None:
        self._config, self._store, self._publisher = config, store, publisher
        self._blobs, self._trees, self._tasks = blobs, trees, tasks

    def begin(self, tree: ActiveTree) -> None:
        """Begin to wait until the broker and the store have a tree's last event."""
        tree.enter(TreeState.FINISHING)
        self._trees.changed.set()
        self._trees.start_due.set()
        self._tasks.spawn(self._complete(tree))

    async def return_tree(self, tree: ActiveTree, reason: str) -> None:
        """Return a tree to the store, which queues it again; this assignment is over."""
        try:
            await self._store.return_tree(tree.spec.tree_id, tree.epoch, reason)
        except Refused as error:
            await self._release(tree, str(error), ack=error.reason != Reason.STALE_EPOCH)
        except BanyanError as error:  # the claim expires by itself, unless the tree is unknown
            await self._release(tree, str(error), ack=isinstance(error, NotFound))
        else:
            await self._release(tree, reason, ack=True)

    @asynccontextmanager
    async def or_abandoned(self, tree: ActiveTree) -> AsyncIterator[None]:
        """Give up the claim on a tree if the block, which is to end it, fails of itself."""
        try:
            yield
        except Exception:  # of any kind: the claim would be renewed until the run is cancelled
            log.exception("tree %s cannot be ended; its claim is given up", tree.label)
            await self._abandon(tree)

    async def _abandon(self, tree: ActiveTree) -> None:
        """Give up a claim: it is renewed no more, and expires.

        The next claim without a new segment counts as an attempt, so this ends.
        """
        if self._trees.remove(tree):
            await tree.delivery.nak(_RETRY_S)

    async def flush_and_return(self, tree: ActiveTree, reason: str) -> None:
        """Publish the queued events, then return a tree: its next claim would fence them."""
        await self._publisher.flush_if_possible(_LAST_EVENTS_S)
        await self.return_tree(tree, reason)

    async def _complete(self, tree: ActiveTree) -> None:
        """Wait until the store has a tree, or give up its claim."""
        async with self.or_abandoned(tree):
            await self._await_stored(tree)

    async def _await_stored(self, tree: ActiveTree) -> None:
        """Wait until the store has a tree; publish again what it lacks."""
        await tree.end_published.wait()
        await asyncio.sleep(_PAUSE_S)
        repeats = 0
        while self._trees.holds(tree):
            ingested = await self._ingested(tree)
            if ingested is None:
                continue
            if await self._is_settled(tree, ingested):
                return
            repeats += 1
            if repeats > _MOST_REPEATS:
                log.error("the store does not take tree %s; its claim is given up", tree.label)
                await self._abandon(tree)
                return
            await self._publish_again(tree, ingested, repeats)

    async def _ingested(self, tree: ActiveTree) -> Ingested | None:
        """Ask the store for a tree; return None after a failure, when the tree may be released."""
        segments = [segment.id for segment in tree.segments]
        try:
            return await self._store.await_ingested(
                tree.spec.tree_id, tree.epoch, segments, _WAIT_S
            )
        except TemporaryError as error:
            log.warning("the store does not answer: %s", error)
        except Refused as error:  # another node has the tree, or it is over
            await self._release(tree, str(error), ack=error.reason != Reason.STALE_EPOCH)
            return None
        except NotFound as error:
            await self._release(tree, str(error), ack=True)
            return None
        except BanyanError as error:  # perhaps about another tree of the same call
            log.error("the store does not say whether it has tree %s: %s", tree.label, error)
        await asyncio.sleep(_RETRY_S)
        return None

    async def _is_settled(self, tree: ActiveTree, ingested: Ingested) -> bool:
        """Release a tree that is complete or refused; tell whether it was released."""
        if ingested.refused:
            await self.return_tree(tree, return_reasons.refused(ingested.refused[0]))
            return True
        if ingested.missing or not ingested.grown:
            return False
        self._trees.grown += 1
        await self._release(tree, "", ack=True)
        return True

    async def _publish_again(self, tree: ActiveTree, ingested: Ingested, attempt: int) -> None:
        log.warning(
            "the store lacks %d segments of tree %s%s; publishing again",
            len(ingested.missing),
            tree.label,
            "" if ingested.grown else " and its end",
        )
        tree.note_progress()
        missing = [(s, tree.epoch) for s in tree.segments if s.id in ingested.missing]
        run_id, node_id = self._config.run_id, self._config.node_id
        for event in messages.segments(run_id, node_id, missing, tree.traceparent):
            light = await self._blobs.move_large_segments(event)
            await self._publisher.put(light.again(attempt))
        sent = asyncio.Event()
        for event in tree.events:
            is_last = event is tree.events[-1]
            await self._publisher.put(event.again(attempt), sent if is_last else None)
        self._publisher.flush_soon()
        await sent.wait()

    async def _release(self, tree: ActiveTree, reason: str, ack: bool) -> None:
        if reason:
            log.info("tree %s is let go: %s", tree.label, reason)
        self._trees.remove(tree)
        if ack:
            await tree.delivery.ack()
