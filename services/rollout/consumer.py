"""Where a node's work comes from: the run's growth queue, and the events that say that there is a new policy."""

from collections.abc import AsyncIterator

from services.chassis import subjects
from services.chassis.bus import Bus
from services.rollout.ports import Assignments

_ACK_WAIT_S = 30.0
_MOST_PENDING = 10_000  # trees of a run that nodes hold at once; far above what their branches allow


async def assignments(bus: Bus, run_id: str, made: str = "") -> Assignments:
    """The run's queue: one durable consumer for all its nodes. `made`: one that somebody else made."""
    if made:
        return await bus.bind(subjects.GROWTH, made)
    return await bus.consumer(
        subjects.GROWTH,
        subjects.growth_durable(run_id),
        [subjects.growth(run_id)],
        ack_wait_s=_ACK_WAIT_S,
        max_ack_pending=_MOST_PENDING,
    )


def policy_events(bus: Bus, run_id: str) -> AsyncIterator[object]:
    """Something at each PolicyPublished; what it says is read from the store."""
    return bus.listen(subjects.TRAIN, [subjects.train(run_id, "policy")])
