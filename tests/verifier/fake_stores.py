"""Fakes of treestore and run store for a verifier's consumer, with everything around it."""

import asyncio
import contextlib
import json

import grpc

from banyan.errors import InvalidInput
from banyan.v1 import (
    events_pb2,
    runstore_service_pb2,
    runstore_service_pb2_grpc,
    tree_pb2,
    treestore_service_pb2,
    treestore_service_pb2_grpc,
)
from services.chassis.messaging import subjects
from services.chassis.rpc import rpc
from services.verifier.consumer import LeafConsumer
from services.verifier.handlers import LeafHandler
from services.verifier.publisher import BusPublisher
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.scoring import Scoring
from services.verifier.store import GrpcStore

RUN = "test-00000000"
RECIPE = {"name": "test", "model": "tiny", "task": {"name": "arithmetic"}}


class TreeStore(treestore_service_pb2_grpc.TreeStoreServiceServicer):
    """A treestore that answers from the test's data."""

    def __init__(self):
        self.completions = {}
        self.scorers = ["number"]
        self.epoch, self.state = 1, tree_pb2.TREE_STATE_SCORING
        self.down = False
        self.poison = b""
        self.scored = set()  # (segment, scorer): not owed any more
        self.reads = 0
        self.ingests = True

    def note(self, scored):
        """Record that a score was ingested."""
        if self.ingests:
            self.scored.add((scored.leaf.segment, scored.scorer))

    async def ReadLeaves(self, request, context):
        self.reads += 1
        if self.down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        if any(key.leaf.end == 666 or key.leaf.segment == self.poison for key in request.leaves):
            raise InvalidInput("leaf 666 is poison")
        found = [self._transcript(k) for k in request.leaves if k.leaf.segment in self.completions]
        return treestore_service_pb2.ReadLeavesResponse(transcripts=found)

    def _transcript(self, key):
        return treestore_service_pb2.LeafTranscript(
            key=key,
            run_id=RUN,
            completion=self.completions[key.leaf.segment],
            row_json=json.dumps({"question": "3 + 4", "answer": 7}),
            scorers=[name for name in self.scorers if (key.leaf.segment, name) not in self.scored],
            traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        )

    async def ListTrees(self, request, context):
        [tree_id] = request.filter.tree_ids
        tree = treestore_service_pb2.TreeSummary(
            tree_id=tree_id, run_id=RUN, claim_epoch=self.epoch, state=self.state
        )
        return treestore_service_pb2.ListTreesResponse(trees=[tree])


class RunStore(runstore_service_pb2_grpc.RunStoreServiceServicer):
    """A run store with one run."""

    def __init__(self):
        self.recipe = json.dumps(RECIPE)
        self.reads = 0

    async def ReadRun(self, request, context):
        self.reads += 1
        run = runstore_service_pb2.Run(run_id=request.run_id, recipe_json=self.recipe)
        return runstore_service_pb2.ReadRunResponse(run=run)


class World:
    """Broker, stores and verifier of a test."""

    def __init__(self, bus, trees, runs, address):
        self.bus, self.trees, self.runs, self.address = bus, trees, runs, address
        self.scores: dict[bytes, list] = {}

    @contextlib.asynccontextmanager
    async def verifier(self, publisher=None):
        stop, channel = asyncio.Event(), rpc.channel(self.address)
        scoring = Scoring(Pool(Limits(deadline_s=2.0)))
        handler = LeafHandler(
            GrpcStore(channel), publisher or BusPublisher(self.bus), scoring, "v1"
        )
        task = asyncio.create_task(
            LeafConsumer(self.bus, GrpcStore(channel), handler, 16).run(stop)
        )
        try:
            yield task
        finally:
            stop.set()
            await asyncio.wait_for(task, 15)
            await scoring.close()
            await channel.close()

    async def leaf(self, number, *, end=3, epoch=1):
        (segment,) = await self.leaves(number, end=end, epoch=epoch)
        return segment

    async def leaves(self, *numbers, end=3, epoch=1):
        """Publish one message of several leaves; return their segments."""
        segments = [number.to_bytes(32, "big") for number in numbers]
        places = [tree_pb2.LeafRef(segment=segment, end=end) for segment in segments]
        said = [
            events_pb2.LeafFinished(
                run_id=RUN, tree_id=b"t" * 32, claim_epoch=epoch, leaf=place, reason="stop"
            )
            for place in places
        ]
        message = events_pb2.LeavesFinished(leaves=said)
        await self.bus.publish(
            subjects.lineage(RUN, "leaf"), message, f"leaf-{numbers}-{end}-{epoch}"
        )
        return segments

    async def collect(self):
        stream = [subjects.lineage(RUN, "score")]
        consumer = await self.bus.consumer(subjects.LINEAGE, "collector", stream)
        while True:
            for delivery in await consumer.fetch(64, 1.0):
                for event in delivery.decode(events_pb2.LeavesScored).scores:
                    self.scores.setdefault(event.scored.leaf.segment, []).append(
                        (event, delivery.traceparent)
                    )
                    self.trees.note(event.scored)
                await delivery.ack()

    async def unacked(self):
        info = await self.bus._js.consumer_info(subjects.LINEAGE, "verifier")
        return info.num_pending + info.num_ack_pending
