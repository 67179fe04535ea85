"""The announcement of policies: the place of their weights, their parent, a step's metrics."""

from collections.abc import Mapping

from banyan.v1 import events_pb2
from banyan.wire.segments import policy_to_wire
from services.chassis.process import telemetry
from services.learner.ports import Store
from services.learner.position import Position
from services.learner.weights.folder import WeightFolder
from services.learner.weights.outlet import FolderOnly, Outlet


class Announcer:
    """Puts the policies of one run into the store; their events follow from its outbox."""

    def __init__(
        self,
        run_id: str,
        store: Store,
        weights: WeightFolder,
        address: str,
        outlet: Outlet | None = None,
    ) -> None:
        self._run_id, self._address = run_id, address
        self._store, self._weights = store, weights
        self._outlet = outlet or FolderOnly()

    async def announce(
        self,
        at: Position,
        parent: bytes,
        batch_ordinal: int | None,
        *,
        metrics: Mapping[str, float] | None = None,
        already_announced: bool = False,
        traceparent: str = "",
    ) -> Mapping[str, float]:
        """Announce the policy in memory and return the metrics of publishing its weights.

        The store learns of it only once its weights can be fetched.

        already_announced: an older epoch announced the same weights; the store records their new
            owner, and publishes no event
        traceparent: of the step that made it
        """
        manifest = self._weights.find(at.digest)
        sending = {} if already_announced else await self._outlet.put(manifest)
        published = events_pb2.PolicyPublished(
            run_id=self._run_id,
            policy=policy_to_wire(at.version),
            parent_digest=parent,
            batch_ordinal=batch_ordinal,
            path=str(self._weights.folder.resolve()),
            address=self._address,
            bytes=manifest.bytes,
            metrics={**(metrics or {}), **sending},
            traceparent=traceparent,
        )
        await self._store.put_policy(published, already_announced)
        telemetry.count("banyan.weights.bytes", manifest.bytes)
        return sending

    async def announce_again(self, at: Position, known: events_pb2.PolicyPublished | None) -> None:
        """Announce a checkpoint's policy under the new epoch.

        known: its first announcement, whose origin it keeps
        """
        if known is None:
            await self.announce(at, b"", None)
        else:
            ordinal = known.batch_ordinal if known.HasField("batch_ordinal") else None
            await self.announce(at, known.parent_digest, ordinal)

    async def drop_foreign(self) -> None:
        """Remove the weights of earlier learners, once a policy of this one is announced."""
        self._weights.drop_foreign()
        await self._outlet.drop_foreign()
