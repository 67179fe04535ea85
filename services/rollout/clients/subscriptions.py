"""Subscriptions of a node: the run's growth queue, and events that trigger a poll of the store."""

from collections.abc import AsyncIterator

from services.chassis.messaging import assignments as queues
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.rollout.ports import Assignments


async def assignments(bus: Bus, run_id: str, consumer: str = "") -> Assignments:
    """Return the run's queue: one durable consumer for all its nodes.

    consumer: name of an existing consumer to bind to instead.
    """
    if consumer:
        return await bus.bind(subjects.GROWTH, consumer)
    return await queues.queue(bus, run_id)


def closed_events(bus: Bus, run_id: str) -> AsyncIterator[object]:
    """Subscribe to TreeClosed events of the run.

    Joined nodes have no right to these; they learn of ended trees as they renew their claims.
    """
    return bus.subscribe(subjects.lineage(run_id, "closed"))


def policy_events(bus: Bus, run_id: str) -> AsyncIterator[object]:
    """Subscribe to PolicyPublished events, as triggers only: policies are read from the store."""
    return bus.subscribe(subjects.train(run_id, "policy"))
