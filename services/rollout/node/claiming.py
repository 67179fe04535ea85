"""Takes assignments: claims each tree before anything else, and makes of it what a node can grow (PROTOCOL 3)."""

import asyncio
import logging
from collections.abc import Callable

from google.protobuf.message import DecodeError

from banyan.errors import BanyanError, InvalidInput, NotFound, Refused
from banyan.v1 import events_pb2
from banyan.wire import segments
from services.chassis.process import telemetry
from services.rollout.engines.port import Tokenizer
from services.rollout.growth import return_reasons
from services.rollout.growth import spec as specs
from services.rollout.growth.grower import Grower, resumed
from services.rollout.growth.spec import GrowSpec
from services.rollout.node.active_trees import ActiveTree
from services.rollout.ports import Assignments, Claim, Delivery, Store

log = logging.getLogger(__name__)

_FETCH_S = 0.5  # also how long a drain may wait for a fetch to end
_MOST_FETCHED = 32
_LATER_S = 1.0


class TreeClaimer:
    """Fetches as many assignments as there is room for. `fit`: whether the node may grow what came of a fetch."""

    def __init__(
        self,
        queue: Assignments,
        store: Store,
        tokenizer: Callable[[], Tokenizer],
        node_id: str,
        fit: Callable[[], bool] = lambda: True,
    ) -> None:
        self._queue, self._store, self._tokenizer, self._node_id, self._fit = (
            queue,
            store,
            tokenizer,
            node_id,
            fit,
        )

    async def close(self) -> None:
        """Takes nothing more."""
        await self._queue.close()

    async def take(self, free: int) -> list[ActiveTree]:
        """Claims up to `free` trees; none if nothing came for a while."""
        deliveries = await self._queue.fetch(min(free, _MOST_FETCHED), _FETCH_S)
        taken = await asyncio.gather(*(self._take(d) for d in deliveries))
        return [live for live in taken if live is not None]

    async def _take(self, delivery: Delivery) -> ActiveTree | None:
        if not self._fit():
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
        )  # one that is never ended is never told
        try:
            claim = await self._store.claim(assignment.tree_id, assignment.ticket, span.traceparent)
        except (NotFound, Refused) as error:
            log.warning("tree %s is not to be grown: %s", assignment.tree_id.hex()[:12], error)
            await delivery.ack()
            return None
        except BanyanError as error:
            log.warning("tree %s is not claimed: %s", assignment.tree_id.hex()[:12], error)
            await delivery.nak(_LATER_S)
            return None
        if not claim.epoch:  # grown, dropped, or a newer assignment is under way
            await delivery.ack()
            return None
        span.set(banyan_claim_epoch=claim.epoch)
        if claim.first not in ("", span.traceparent):
            span.link(claim.first)
        return await self._live(assignment, claim, delivery, span)

    async def _live(
        self,
        assignment: events_pb2.GrowTree,
        claim: Claim,
        delivery: Delivery,
        span: telemetry.Span,
    ) -> ActiveTree | None:
        try:
            spec = specs.from_wire(claim.tree.spec)
            grower = self._grower(spec, claim)
        except InvalidInput as error:
            log.error("%s", error)
            await self._refuse(assignment.tree_id, claim.epoch, return_reasons.invalid(error))
            await delivery.ack()
            return None
        return ActiveTree(
            spec, grower, claim.epoch, delivery, span, assignment.wave, assignment.wave_size
        )

    async def _refuse(self, tree_id: bytes, epoch: int, why: str) -> None:
        try:
            await self._store.give_back(tree_id, epoch, why)
        except BanyanError as error:  # the claim runs out by itself
            log.warning("tree %s is not handed back: %s", tree_id.hex()[:12], error)

    def _grower(self, spec: GrowSpec, claim: Claim) -> Grower:
        tree = segments.tree_from_wire(claim.tree)
        leaves = resumed([segments.leaf_from_wire(leaf) for leaf in claim.tree.leaves])
        room = claim.tree.room if claim.tree.HasField("room") else None
        return Grower(spec, tree, self._tokenizer(), self._node_id, claim.epoch, leaves, given=room)
