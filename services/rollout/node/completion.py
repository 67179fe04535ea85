"""Ends a tree: acks its assignment only when the store has all of it, and publishes again what is missing (PROTOCOL 3)."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

from banyan.errors import BanyanError, NotFound, Refused, TemporaryError
from banyan.reasons import Reason
from services.rollout.clients import messages
from services.rollout.clients.blobs import Blobs
from services.rollout.clients.publisher import Publisher
from services.rollout.node.active_trees import ActiveTree, Trees
from services.rollout.ports import Ingested, Store

log = logging.getLogger(__name__)

_LET_S = 0.25  # the store stores first; asking at once would be asking twice, when all that wait want it most
_WAIT_S = 10.0
_AGAIN_S = 1.0
_MOST_AGAIN = 5


class TreeCompleter:
    """Waits for the store, tree by tree."""

    def __init__(
        self, store: Store, publisher: Publisher, trees: Trees, run_id: str, node_id: str
    ) -> None:
        self._store, self._publisher, self._trees = store, publisher, trees
        self._blobs = Blobs(store)
        self._run_id, self._node_id = run_id, node_id
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, live: ActiveTree) -> None:
        """Starts to wait for a tree whose last event is queued."""
        live.finishing = True
        self._trees.changed.set()
        self.spawn(self._finish(live))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Ends a tree beside all else; whatever goes wrong is said."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("waiting for the store failed", exc_info=task.exception())

    def cancel(self) -> None:
        """Stops waiting; the trees will be claimed again."""
        for task in self._tasks:
            task.cancel()

    async def _finish(self, live: ActiveTree) -> None:
        await live.grown.wait()
        await asyncio.sleep(_LET_S)
        attempt = 0
        while self._trees.holds(live):
            try:
                answer = await self._store.ingested(
                    live.spec.tree_id, live.epoch, [s.id for s in live.segments], _WAIT_S
                )
            except TemporaryError as error:
                log.warning("the store does not answer: %s", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            except Refused as error:  # somebody else has the tree, or it is over
                await self._let_go(live, str(error), ack=error.reason != Reason.STALE_EPOCH)
                return
            except NotFound as error:
                await self._let_go(live, str(error), ack=True)
                return
            except (
                BanyanError
            ) as error:  # perhaps over another tree that was asked for with this one
                log.error(
                    "the store does not say whether it has tree %s: %s",
                    live.spec.tree_id.hex()[:12],
                    error,
                )
                await asyncio.sleep(_AGAIN_S)
                continue
            if await self._settled(live, answer):
                return
            attempt += 1
            if (
                attempt > _MOST_AGAIN
            ):  # whatever the store has against it, a new claim counts as an attempt
                log.error(
                    "the store does not take tree %s; its claim is given up",
                    live.spec.tree_id.hex()[:12],
                )
                self._trees.forget(live)
                await live.delivery.nak(_AGAIN_S)
                return
            await self._again(live, answer, attempt)

    async def _settled(self, live: ActiveTree, answer: Ingested) -> bool:
        """Whether nothing more has to be said about the tree."""
        if answer.refused:
            await self.give_back(live, f"REFUSED: {answer.refused[0]}")
            return True
        if answer.missing or not answer.grown:
            return False
        self._trees.grown += 1
        await self._let_go(live, "", ack=True)
        return True

    async def _again(self, live: ActiveTree, answer: Ingested, attempt: int) -> None:
        log.warning(
            "the store lacks %d segments of tree %s%s; publishing again",
            len(answer.missing),
            live.spec.tree_id.hex()[:12],
            "" if answer.grown else " and its end",
        )
        live.touched = time.monotonic()
        missing = [(s, live.epoch) for s in live.segments if s.id in answer.missing]
        for event in messages.segments(self._run_id, self._node_id, missing, live.traceparent):
            await self._publisher.put((await self._blobs.light(event)).again(attempt))
        sent = asyncio.Event()
        for event in live.told:
            await self._publisher.put(
                event.again(attempt), sent if event is live.told[-1] else None
            )
        self._publisher.hurry()
        await sent.wait()

    async def give_back(self, live: ActiveTree, reason: str) -> None:
        """Hands a tree back to the store, which queues it again; this assignment is done with."""
        try:
            await self._store.give_back(live.spec.tree_id, live.epoch, reason)
        except Refused as error:
            await self._let_go(live, str(error), ack=error.reason != Reason.STALE_EPOCH)
        except (
            BanyanError
        ) as error:  # the claim runs out by itself; a tree that is unknown is nobody's
            await self._let_go(live, str(error), ack=isinstance(error, NotFound))
        else:
            await self._let_go(live, reason, ack=True)

    async def _let_go(self, live: ActiveTree, why: str, ack: bool) -> None:
        if why:
            log.info("tree %s is let go: %s", live.spec.tree_id.hex()[:12], why)
        self._trees.forget(live)
        if ack:
            await live.delivery.ack()
