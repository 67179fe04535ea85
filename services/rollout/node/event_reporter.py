"""Publication of growth: segments with the plans that they caused, leaves, and ends of growth."""

from collections.abc import Sequence

from banyan.v1 import events_pb2
from services.rollout.clients import messages
from services.rollout.clients.blobs import Blobs
from services.rollout.clients.publisher import Publisher
from services.rollout.growth.step import GrowthStep
from services.rollout.node.active_trees import ActiveTree
from services.rollout.node.completion import TreeCompleter
from services.rollout.node.config import NodeConfig
from services.rollout.node.tracing import Spans


class EventReporter:
    """The events of growth steps, queued for publication.

    config: configuration of the node.
    publisher: publisher of events.
    blobs: sender of large segments.
    spans: spans of segments.
    completer: waits for each tree whose end of growth is queued.
    """

    def __init__(
        self,
        config: NodeConfig,
        publisher: Publisher,
        *,
        blobs: Blobs,
        spans: Spans,
        completer: TreeCompleter,
    ) -> None:
        self._config, self._publisher, self._blobs = config, publisher, blobs
        self._spans, self._completer = spans, completer

    async def report(self, steps: Sequence[tuple[ActiveTree, GrowthStep]]) -> None:
        """Queue the events of steps: the segments of all trees first, in as few messages as fit."""
        claimed = [(segment, tree.epoch) for tree, step in steps for segment in step.segments]
        for tree, step in steps:
            tree.segments += step.segments
            self._spans.ended(tree, step.segments)
        plans = [
            events_pb2.GrownPlan(tree_id=tree.spec.tree_id, plan=plan)
            for tree, step in steps
            for plan in step.plans
        ]
        run_id, node_id = self._config.run_id, self._config.node_id
        traceparent = steps[0][0].traceparent if steps else ""
        for event in messages.segments(run_id, node_id, claimed, traceparent, plans):
            await self._publisher.put(await self._blobs.move_large_segments(event))
        for tree, step in steps:
            await self._report_ends(tree, step)
        if any(_is_awaited(tree, step) for tree, step in steps):
            self._publisher.flush_soon()

    async def _report_ends(self, tree: ActiveTree, step: GrowthStep) -> None:
        """Queue the leaves of a step, and the end of growth."""
        run_id, tree_id, traceparent = self._config.run_id, tree.spec.tree_id, tree.traceparent
        for mark in step.leaves:
            completion = tree.grower.completion(mark.leaf)
            ending = step.endings.get(mark.leaf)
            event = messages.leaf(
                run_id, tree_id, tree.epoch, mark, completion, traceparent, ending
            )
            tree.events.append(event)
            await self._publisher.put(event)
        if step.grown is not None and not tree.is_finishing:
            event = messages.grown(
                run_id,
                self._config.node_id,
                tree_id,
                tree.epoch,
                leaves=step.grown,
                traceparent=traceparent,
                inside=step.inside,
            )
            tree.events.append(event)
            # Before the wait for room in the queue: a tree whose end is being published must not be
            # given up.
            self._completer.begin(tree)
            await self._publisher.put(event, tree.end_published)


def _is_awaited(tree: ActiveTree, step: GrowthStep) -> bool:
    """Return whether anybody waits for a step's events; what answers an action reads the store."""
    return step.grown is not None or bool(step.calls) or tree.needs_answer
