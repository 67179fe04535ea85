"""Announces policies: where their weights lie, what they were trained from, what the step measured."""

from collections.abc import Mapping

from banyan.v1 import events_pb2
from banyan.wire.segments import policy_to_wire
from services.chassis.process import telemetry
from services.learner.ports import Store
from services.learner.position import Position
from services.learner.weights.folder import WeightFolder
from services.learner.weights.object_store import FolderOnly, Outlet


class Announcer:
    """Puts policies of one run into the store; their events follow from its outbox."""

    def __init__(
        self,
        run_id: str,
        store: Store,
        weights: WeightFolder,
        address: str,
        outlet: Outlet | None = None,
    ) -> None:
        self._run_id, self._store, self._weights, self._address = run_id, store, weights, address
        self._outlet = outlet or FolderOnly()

    async def announce(
        self,
        at: Position,
        parent: bytes,
        batch_ordinal: int | None,
        metrics: Mapping[str, float] | None = None,
        replayed: bool = False,
    ) -> Mapping[str, float]:
        """Announces the policy in memory; what handing it out took. Nobody is told of it before its weights are out.

        `replayed`: an older epoch announced the same weights; the store notes whose they are now, and tells nobody.
        """
        manifest = self._weights.find(at.digest)
        told = {} if replayed else await self._outlet.put(manifest)
        said = events_pb2.PolicyPublished(
            run_id=self._run_id,
            policy=policy_to_wire(at.version),
            parent_digest=parent,
            batch_ordinal=batch_ordinal,
            path=str(self._weights.folder.resolve()),
            address=self._address,
            bytes=manifest.bytes,
            metrics={**(metrics or {}), **told},
        )
        await self._store.put_policy(said, replayed)
        telemetry.count("banyan.weights.bytes", manifest.bytes)
        return told

    async def again(self, at: Position, known: events_pb2.PolicyPublished | None) -> None:
        """Announces a checkpoint's policy under the new epoch, with the origin that the store knows of it."""
        if known is None:
            await self.announce(at, b"", None)
        else:
            ordinal = known.batch_ordinal if known.HasField("batch_ordinal") else None
            await self.announce(at, known.parent_digest, ordinal)

    async def settle(self) -> None:
        """A policy of this learner is announced: what earlier ones of the run left may go."""
        self._weights.drop_foreign()
        await self._outlet.settle()
