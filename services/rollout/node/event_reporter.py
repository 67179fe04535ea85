"""Tells what became of trees: segments with the plans that they caused, leaves, and that a tree is grown (PROTOCOL 3)."""

from collections.abc import Callable, Sequence

from banyan.v1 import events_pb2
from services.rollout.clients import messages
from services.rollout.clients.blobs import Blobs
from services.rollout.clients.publisher import Publisher
from services.rollout.growth.grower import GrowthStep
from services.rollout.node.active_trees import ActiveTree
from services.rollout.node.config import NodeConfig
from services.rollout.node.tracing import Spans


class EventReporter:
    """Puts events of steps in line to be published. `grown` hears of each tree whose end is in line."""

    def __init__(
        self,
        plan: NodeConfig,
        publisher: Publisher,
        blobs: Blobs,
        spans: Spans,
        grown: Callable[[ActiveTree], None],
    ) -> None:
        self._run, self._node = plan.run_id, plan.node_id
        self._publisher, self._blobs, self._spans, self._grown = publisher, blobs, spans, grown

    async def tell(self, steps: Sequence[tuple[ActiveTree, GrowthStep]]) -> None:
        """Segments of all trees first; as few messages as they fit in."""
        made = [(segment, live.epoch) for live, step in steps for segment in step.segments]
        for live, step in steps:
            live.segments += step.segments
            self._spans.ended(live, step.segments)
        plans = [
            events_pb2.GrownPlan(tree_id=live.spec.tree_id, plan=plan)
            for live, step in steps
            for plan in step.plans
        ]
        trace = steps[0][0].traceparent if steps else ""
        for event in messages.segments(self._run, self._node, made, trace, plans):
            await self._publisher.put(await self._blobs.light(event))
        for live, step in steps:
            await self._tell(live, step)
        if any(step.grown is not None or live.hurries for live, step in steps):
            self._publisher.hurry()

    async def _tell(self, live: ActiveTree, step: GrowthStep) -> None:
        tree_id, trace = live.spec.tree_id, live.traceparent
        for mark in step.leaves:
            event = messages.leaf(
                self._run, tree_id, live.epoch, mark, live.grower.completion(mark.leaf), trace
            )
            live.told.append(event)
            await self._publisher.put(event)
        if step.grown is not None and not live.finishing:
            event = messages.grown(
                self._run, self._node, tree_id, live.epoch, step.grown, trace, step.inside
            )
            live.told.append(event)
            await self._publisher.put(event, live.grown)
            self._grown(live)
