"""The queue of a run's assignments: one durable consumer that all nodes of the run pull from.

A work queue has one consumer for a subject, so a node that joins pulls from the same one. Whoever needs it first makes it,
and the treestore removes it with its run.
"""

from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.consumer import Consumer

_ACK_WAIT_S = (
    15.0  # of a node that never comes back; what one held that does is queued as it begins
)
_MOST_PENDING = (
    10_000  # trees of a run that nodes hold at once; far above what their branches allow
)


async def queue(bus: Bus, run_id: str) -> Consumer:
    """The run's consumer, made if it is not there."""
    return await bus.consumer(
        subjects.GROWTH,
        subjects.growth_durable(run_id),
        [subjects.growth(run_id)],
        ack_wait_s=_ACK_WAIT_S,
        max_ack_pending=_MOST_PENDING,
    )
