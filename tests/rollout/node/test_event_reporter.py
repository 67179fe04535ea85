"""Events that are sent at once: ends of trees, and those of trees whose policy needs an answer."""

import asyncio
from types import SimpleNamespace

import pytest

from banyan.plugins.traits import PolicyTraits
from services.rollout.growth.step import GrowthStep
from services.rollout.node.active_trees import ActiveTree, TreeState
from services.rollout.node.config import NodeConfig
from services.rollout.node.event_reporter import EventReporter
from tests.rollout.clients.test_events import segment


class Publisher:
    """A count of events and of flushes."""

    def __init__(self):
        self.events, self.flushes = 0, 0

    async def put(self, event, done=None):
        self.events += 1

    def flush_soon(self):
        self.flushes += 1


class Blobs:
    async def move_large_segments(self, event):
        return event


def tree(waits=False, **tree_policy):
    spec = SimpleNamespace(tree_id=b"t" * 32, traits=PolicyTraits(**tree_policy), traceparent="")
    return ActiveTree(
        spec=spec,  # type: ignore[arg-type]
        grower=SimpleNamespace(waits=waits),  # type: ignore[arg-type]
        epoch=1,
        delivery=None,  # type: ignore[arg-type]
        span=SimpleNamespace(traceparent=""),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "of, grown, flushes",
    [
        (tree(), None, 0),
        (tree(), (), 1),
        (tree(waits=True), None, 1),
        (tree(needs_scores=True), None, 1),
        (tree(needs_room=True), None, 0),
    ],
)
async def test_ends_and_needed_answers_are_sent_at_once(of, grown, flushes):
    publisher, completed = Publisher(), []
    reporter = EventReporter(
        NodeConfig(run_id="run", node_id="node", max_branches=8),
        publisher,  # type: ignore[arg-type]
        blobs=Blobs(),  # type: ignore[arg-type]
        spans=SimpleNamespace(ended=lambda tree, segments: None),  # type: ignore[arg-type]
        completer=SimpleNamespace(begin=completed.append),  # type: ignore[arg-type]
    )
    step = GrowthStep(segments=(segment(1, 3),), grown=grown)
    await reporter.report([(tree(), GrowthStep(segments=(segment(0, 3),))), (of, step)])
    assert (publisher.events, publisher.flushes) == (1 + (grown is not None), flushes)
    assert completed == ([of] if grown is not None else [])


async def test_a_tree_whose_end_waits_for_room_in_the_queue_is_not_given_up_meanwhile():
    """Whoever gives up unfinished trees beside it, for an engine that is unfit, must skip it."""
    of, waits, room = tree(), asyncio.Event(), asyncio.Event()

    class Full(Publisher):
        async def put(self, event, done=None):
            waits.set()
            await room.wait()

    reporter = EventReporter(
        NodeConfig(run_id="run", node_id="node", max_branches=8),
        Full(),  # type: ignore[arg-type]
        blobs=Blobs(),  # type: ignore[arg-type]
        spans=SimpleNamespace(ended=lambda tree, segments: None),  # type: ignore[arg-type]
        completer=SimpleNamespace(  # type: ignore[arg-type]
            begin=lambda tree: tree.enter(TreeState.FINISHING)
        ),
    )
    reporting = asyncio.create_task(reporter.report([(of, GrowthStep(grown=()))]))
    await asyncio.wait_for(waits.wait(), 5.0)
    assert of.is_finishing
    room.set()
    await asyncio.wait_for(reporting, 5.0)
