"""The queue of a run's assignments: one durable consumer that all nodes of the run share.

A work queue has one consumer for a subject. The first node that needs it creates it, and the
treestore deletes it together with its run.
"""

from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.consumer import Consumer

# Until assignments of a node that never returns are delivered again. A node that restarts returns
# its own at once.
ACK_WAIT_S = 15.0
_MAX_PENDING = 10_000  # trees of a run on nodes at once; far above the limit by their branches


async def queue(bus: Bus, run_id: str) -> Consumer:
    """Return the run's consumer, created if it is missing."""
    return await bus.consumer(
        subjects.GROWTH,
        subjects.growth_durable(run_id),
        [subjects.growth(run_id)],
        ack_wait_s=ACK_WAIT_S,
        max_ack_pending=_MAX_PENDING,
    )
