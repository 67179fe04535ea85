"""Claims of assigned trees.

A node claims each tree before anything else (docs/protocol.md, Claim first), and makes of the claim
a tree that it can grow.
"""

import asyncio
import logging

from google.protobuf.message import DecodeError

from banyan.errors import BanyanError, InvalidInput, NotFound, Refused
from banyan.v1 import events_pb2
from banyan.wire import segments
from services.chassis.process import telemetry
from services.rollout.engines.thread import EngineThread
from services.rollout.growth import grants, return_reasons
from services.rollout.growth import spec as specs
from services.rollout.growth.grower import Grower, announced
from services.rollout.growth.spec import GrowSpec
from services.rollout.node.active_trees import ActiveTree
from services.rollout.ports import Assignments, Claim, Delivery, Store
from services.rollout.weights.refresh import Refresher

log = logging.getLogger(__name__)

_FETCH_S = 0.5  # also how long a drain may wait for a fetch to end
_MOST_FETCHED = 32
_LATER_S = 1.0


class TreeClaimer:
    """Claims of the trees that the run's queue assigns.

    queue: the run's queue of assignments.
    store: the tree store.
    thread: the engine's thread, for its tokenizer.
    refresher: knows whether the engine is fit to grow trees.
    node_id: name of the node.
    """

    def __init__(
        self,
        queue: Assignments,
        store: Store,
        thread: EngineThread,
        refresher: Refresher,
        node_id: str,
    ) -> None:
        self._queue, self._store, self._thread = queue, store, thread
        self._refresher, self._node_id = refresher, node_id

    async def close(self) -> None:
        """Fetch nothing more."""
        await self._queue.close()

    async def claim(self, free: int) -> list[ActiveTree]:
        """Claim up to `free` trees; none if no assignment came for a while."""
        deliveries = await self._queue.fetch(min(free, _MOST_FETCHED), _FETCH_S)
        trees = await asyncio.gather(*(self.claim_one(delivery) for delivery in deliveries))
        return [tree for tree in trees if tree is not None]

    async def claim_one(self, delivery: Delivery) -> ActiveTree | None:
        """Claim the tree of one assignment; return None if this node cannot grow it."""
        if not self._refresher.fit:
            await delivery.nak(_LATER_S)
            return None
        try:
            assignment = events_pb2.GrowTree.FromString(delivery.data)
        except DecodeError:
            log.error(
                "an assignment of %d bytes cannot be read; it is thrown away", len(delivery.data)
            )
            await delivery.term()
            return None
        span = telemetry.start(
            "rollout.grow",
            delivery.traceparent,
            banyan_run=assignment.run_id,
            banyan_tree=assignment.tree_id.hex(),
            banyan_node=self._node_id,
        )  # a span that never ends is never exported
        claim = await self._claim(assignment, delivery, span)
        if claim is None:
            return None
        span.set(banyan_claim_epoch=claim.epoch)
        if claim.first_traceparent not in ("", span.traceparent):
            span.link(claim.first_traceparent)
        return await self._active_tree(assignment, claim, delivery, span)

    async def _claim(
        self, assignment: events_pb2.GrowTree, delivery: Delivery, span: telemetry.Span
    ) -> Claim | None:
        """Return a claim; None if there is nothing to grow or the store is away."""
        tree_id = assignment.tree_id
        try:
            claim = await self._store.claim(tree_id, assignment.ticket, span.traceparent)
        except (NotFound, Refused) as error:
            log.warning("tree %s is not to be grown: %s", tree_id.hex()[:12], error)
            await delivery.ack()
            return None
        except BanyanError as error:
            log.warning("tree %s is not claimed: %s", tree_id.hex()[:12], error)
            await delivery.nak(_LATER_S)
            return None
        if not claim.epoch:  # grown, dropped, or a newer assignment is under way
            await delivery.ack()
            return None
        return claim

    async def _active_tree(
        self,
        assignment: events_pb2.GrowTree,
        claim: Claim,
        delivery: Delivery,
        span: telemetry.Span,
    ) -> ActiveTree | None:
        """Return the claimed tree; return it to the store if its spec is unusable here."""
        try:
            spec = specs.from_wire(claim.tree.spec)
            grower = self._grower(spec, claim)
        except InvalidInput as error:
            log.error("%s", error)
            reason = return_reasons.invalid(error)
            await self._return(assignment.tree_id, claim.epoch, reason)
            await delivery.ack()
            return None
        return ActiveTree(
            spec=spec,
            grower=grower,
            epoch=claim.epoch,
            delivery=delivery,
            span=span,
            wave=assignment.wave,
            wave_size=assignment.wave_size,
        )

    async def _return(self, tree_id: bytes, epoch: int, reason: str) -> None:
        try:
            await self._store.return_tree(tree_id, epoch, reason)
        except BanyanError as error:  # the claim expires by itself
            log.warning("tree %s is not handed back: %s", tree_id.hex()[:12], error)

    def _grower(self, spec: GrowSpec, claim: Claim) -> Grower:
        message = claim.tree
        return Grower(
            spec,
            segments.tree_from_wire(message),
            self._thread.tokenizer,
            producer=self._node_id,
            claim=claim.epoch,
            leaves=announced(segments.leaf_from_wire(leaf) for leaf in message.leaves),
            grant=grants.from_wire(message.room) if message.HasField("room") else None,
        )
