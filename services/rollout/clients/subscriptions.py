"""Where a node's work comes from: the run's growth queue, and the events that say that there is a new policy."""

from collections.abc import AsyncIterator

from services.chassis.messaging import assignments as log
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.rollout.ports import Assignments


async def assignments(bus: Bus, run_id: str, made: str = "") -> Assignments:
    """The run's queue: one durable consumer for all its nodes. `made`: one that somebody else made."""
    if made:
        return await bus.bind(subjects.GROWTH, made)
    return await log.queue(bus, run_id)


def closed_events(bus: Bus, run_id: str) -> AsyncIterator[object]:
    """Something at each TreeClosed of the run. Joined nodes may not hear these; they learn of them as they renew."""
    return bus.subscribe(subjects.lineage(run_id, "closed"))


def policy_events(bus: Bus, run_id: str) -> AsyncIterator[object]:
    """Something at each PolicyPublished; what it says is read from the store."""
    return bus.subscribe(subjects.train(run_id, "policy"))
