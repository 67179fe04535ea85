"""Leaves of a run, stored and queued, which no verifier has seen."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from banyan.digest import canonical, row_digest, tree_id
from banyan.segment import Finish, Kind, Sampling, Segment
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1 import treestore_service_pb2_grpc as ts_grpc
from banyan.wire.segments import segment_to_wire
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc

RUN = "scores-00000000"
RECIPE = '{"name": "scores", "model": "m", "task": {"name": "arithmetic"}}'
BRANCHES, TOKENS, PROMPT = 64, 16, 40
_WAIT_S = 120.0


@dataclass(frozen=True)
class Queue:
    """Leaves to queue.

    leaves: their number, a multiple of `BRANCHES`, which a tree has.
    together: leaves of a message.
    """

    leaves: int
    together: int

    @property
    def trees(self) -> int:
        return self.leaves // BRANCHES


def _spec(number: int) -> tree_pb2.TreeSpec:
    row = {"question": f"{number} + 1", "answer": number + 1}
    digest, group = row_digest(row), f"{RUN}/train/{number}"
    return tree_pb2.TreeSpec(
        run_id=RUN,
        tree_id=tree_id(RUN, group, digest, 0),
        group_id=group,
        group_ordinal=number,
        group_size=1,
        purpose=tree_pb2.TREE_PURPOSE_TRAIN,
        row_digest=digest,
        row_json=canonical(row).decode(),
        messages_json="[]",
        scorers=["number"],
        generate_json="{}",
        score_deadline_ms=3_600_000,
        max_claims=5,
    )


def _segments(spec: tree_pb2.TreeSpec) -> list[Segment]:
    prompt = np.arange(PROMPT, dtype=np.int32)
    root = Segment(spec.tree_id, b"", 0, 0, Kind.PROMPT, prompt, finish=Finish.STOP)
    branches = [
        Segment(
            tree_id=spec.tree_id,
            parent=root.id,
            fork=PROMPT,
            ordinal=ordinal,
            kind=Kind.POLICY,
            tokens_T=np.arange(TOKENS, dtype=np.int32) + ordinal,
            logprobs_T=-np.ones(TOKENS, np.float32),
            policy=b"p" * 32,
            sampling=Sampling(max_new_tokens=TOKENS),
            finish=Finish.STOP,
            text=f"Let me add one. The answer is {ordinal}.",
        )
        for ordinal in range(BRANCHES)
    ]
    return [root, *branches]


async def fill(bus: Bus, channel: Any, queue: Queue) -> None:
    """Have the store take a run's trees and leaves, each in its message to the verifier, too."""
    runs, trees = rs_grpc.RunStoreServiceStub(channel), ts_grpc.TreeStoreServiceStub(channel)
    taken = rs.TakeGatewayEpochRequest(gateway_id="b")
    epoch = (await rpc.call(runs.TakeGatewayEpoch, taken, 10.0, 10.0)).epoch
    row = rs.Run(run_id=RUN, recipe_json=RECIPE, state=rs.RUN_STATE_TRAINING)
    await rpc.call(runs.PutRun, rs.PutRunRequest(run=row, request_id="b", gateway_epoch=epoch))
    for number in range(queue.trees):
        spec = _spec(number)
        opened = events_pb2.TreeOpened(spec=spec, gateway_epoch=epoch)
        message = events_pb2.TreesOpened(trees=[opened])
        await bus.publish(subjects.lineage(RUN, "opened"), message, f"o{number}")
        claim = await _claim(trees, spec)
        for kind, event in _grown(spec, claim, queue.together):
            digest = f"{kind}{number}-{row_digest({'e': event.SerializeToString().hex()}).hex()}"
            await bus.publish(subjects.lineage(RUN, kind), event, digest)
    await until(lambda: _all_grown(trees, queue.trees), "the store has every tree", every_s=0.2)


def _grown(spec: tree_pb2.TreeSpec, claim: int, together: int) -> Iterator[tuple[str, Any]]:
    """Yield kind and message of a tree's segments, leaves, and the end of its growth."""
    segments = _segments(spec)
    grown = [
        events_pb2.GrownSegment(segment=segment_to_wire(s), claim_epoch=claim) for s in segments
    ]
    yield "segment", events_pb2.SegmentsGrown(run_id=RUN, node_id="n", segments=grown)
    places = [tree_pb2.LeafRef(segment=s.id, end=TOKENS) for s in segments[1:]]
    for start in range(0, BRANCHES, together):
        leaves = [
            events_pb2.LeafFinished(
                run_id=RUN, tree_id=spec.tree_id, claim_epoch=claim, leaf=place, reason="stop"
            )
            for place in places[start : start + together]
        ]
        yield "leaf", events_pb2.LeavesFinished(leaves=leaves)
    ended = events_pb2.TreeGrown(
        run_id=RUN, tree_id=spec.tree_id, claim_epoch=claim, leaves=places, node_id="n"
    )
    yield "grown", events_pb2.TreesGrown(trees=[ended])


async def _claim(trees: ts_grpc.TreeStoreServiceStub, spec: tree_pb2.TreeSpec) -> int:
    epochs: list[int] = []

    async def claimed() -> bool:
        request = ts.ClaimTreeRequest(tree_id=spec.tree_id, node_id="n", ticket=1)
        try:
            epochs.append((await rpc.call(trees.ClaimTree, request)).epoch)
        except LookupError:  # opened, but not ingested yet
            return False
        return True

    await until(claimed, "the store has an opened tree")
    return epochs[0]


async def _all_grown(trees: ts_grpc.TreeStoreServiceStub, count: int) -> bool:
    return await in_state(trees, tree_pb2.TREE_STATE_SCORING) == count


async def in_state(
    trees: ts_grpc.TreeStoreServiceStub, state: "tree_pb2.TreeState.ValueType"
) -> int:
    """Return the number of the run's trees in a state."""
    wanted = ts.TreeFilter(run_id=RUN, states=[state], limit=10_000)
    answer = await rpc.call(trees.ListTrees, ts.ListTreesRequest(filter=wanted), 30.0)
    return len(answer.trees)


async def until(condition: Any, what: str, wait_s: float = _WAIT_S, every_s: float = 0.01) -> None:
    """Wait for a condition. Raises TimeoutError."""
    end = time.monotonic() + wait_s
    while not await condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {wait_s:.0f} s")
        await asyncio.sleep(every_s)
