"""Who hurries: the end of a tree, and a tree whose policy goes on by an answer; nobody else."""

from types import SimpleNamespace

import pytest

from services.rollout.growth.grower import GrowthStep
from services.rollout.node.active_trees import ActiveTree
from services.rollout.node.event_reporter import EventReporter
from tests.rollout.clients.test_events import segment


class Publisher:
    """Counts events, and who hurries."""

    def __init__(self):
        self.events, self.hurried = 0, 0

    async def put(self, event, done=None):
        self.events += 1

    def hurry(self):
        self.hurried += 1


class Blobs:
    async def light(self, event):
        return event


def live(waits=False, **policy):
    spec = SimpleNamespace(tree_id=b"t" * 32, policy=SimpleNamespace(**policy), traceparent="")
    grower = SimpleNamespace(waits=waits, lacks_room=False)
    span = SimpleNamespace(traceparent="")
    return ActiveTree(spec, grower, 1, None, span)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "of, grown, hurried",
    [
        (live(), None, 0),
        (live(), (), 1),
        (live(waits=True), None, 1),
        (live(needs_scores=True), None, 1),
        (live(needs_room=True), None, 0),
    ],
)
async def test_who_hurries(of, grown, hurried):
    publisher = Publisher()
    plan = SimpleNamespace(run_id="run", node_id="node")
    spans = SimpleNamespace(ended=lambda live, segments: None)
    teller = EventReporter(plan, publisher, Blobs(), spans, lambda live: None)  # type: ignore[arg-type]
    await teller.tell(
        [
            (live(), GrowthStep(segments=(segment(0, 3),))),
            (of, GrowthStep(segments=(segment(1, 3),), grown=grown)),
        ]
    )
    assert (publisher.events, publisher.hurried) == (1 + (grown is not None), hurried)
