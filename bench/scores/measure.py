"""The services as processes, and the times at which their scores come."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from banyan.runtime import ports
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import treestore_service_pb2_grpc as ts_grpc
from bench.harness.table import Result, median
from bench.scores.queued import RUN, Queue, fill, in_state, until
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.process import nats_server
from services.chassis.rpc import rpc

LEAVES = int(os.environ.get("BENCH_LEAVES", "19968"))
TOGETHER = (16, 64)
RUNS = int(os.environ.get("BENCH_RUNS", "3"))
BAR = 2000
STEADY = (0.1, 0.9)  # of the scores: neither the start nor the end
_LATEST_S = 300.0
_STOP_S = 20.0


def run() -> Result:
    """Measure scores a second with leaves in messages of several sizes."""
    result = Result("scores")
    for together in TOGETHER:
        rates, stored = [], []
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as folder:
                rate, seconds = asyncio.run(_measure(Path(folder), Queue(LEAVES, together)))
            rates.append(rate)
            stored.append(LEAVES / seconds)
        bar = f"at least {BAR:,}" if together == TOGETHER[-1] else ""
        result.add(f"{together} leaves a message: steady", median(rates), "scores/s", bar)
        result.add(
            f"{together} leaves a message: until all trees closed", median(stored), "scores/s"
        )
        result.notes.append(f"{together} a message: {', '.join(f'{rate:.0f}' for rate in rates)}")
    result.notes.append(f"{LEAVES} leaves, {RUNS} runs, medians; SQLite, every commit on the disk")
    return result


async def _measure(folder: Path, queue: Queue) -> tuple[float, float]:
    """Return scores a second in steady state, and seconds until the store had closed all trees."""
    address, store = (f"127.0.0.1:{ports.free_port()}" for _ in range(2))
    process = nats_server.start(
        nats_server.write_config(folder / "nats", address), folder / "nats.log"
    )
    environment = {
        **os.environ,
        "BANYAN_NATS": f"nats://{address}",
        "BANYAN_STORE": store,
        "BANYAN_STATE": str(folder),
        "BANYAN_LOG_LEVEL": "warning",
    }
    try:
        nats_server.await_listening(address, process, folder / "nats.log")
        with _service("treestore", {**environment, "BANYAN_LISTEN": store}):
            bus = await Bus.connect(f"nats://{address}", "bench")
            await bus.ensure_streams()
            async with rpc.channel(store) as channel:
                await fill(bus, channel, queue)
                times = asyncio.create_task(_times(bus, queue.leaves))
                began = time.perf_counter()
                with _service("verifier", {**environment, "BANYAN_LISTEN": "127.0.0.1:0"}):
                    counted = await asyncio.wait_for(times, _LATEST_S)
                    trees = ts_grpc.TreeStoreServiceStub(channel)

                    async def closed() -> bool:
                        return await in_state(trees, tree_pb2.TREE_STATE_CLOSED) == queue.trees

                    await until(closed, "all trees are closed", every_s=0.2)
                seconds = time.perf_counter() - max(began, counted[0][0])
            await bus.close()
        return _steady(counted, queue.leaves), seconds
    finally:
        process.terminate()
        process.wait(_STOP_S)


@contextlib.contextmanager
def _service(name: str, environment: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", f"services.{name}"]
    process = subprocess.Popen(command, env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait(_STOP_S)


async def _times(bus: Bus, leaves: int) -> list[tuple[float, int]]:
    """Return the times at which messages of scores came, with the scores until then."""
    consumer = await bus.consumer(subjects.LINEAGE, "bench", [subjects.lineage(RUN, "score")])
    counted: list[tuple[float, int]] = []
    count = 0
    while count < leaves:
        for delivery in await consumer.fetch(64, 1.0):
            count += len(delivery.decode(events_pb2.LeavesScored).scores)
            counted.append((time.perf_counter(), count))
            await delivery.ack()
    return counted


def _steady(counted: list[tuple[float, int]], leaves: int) -> float:
    first, last = (share * leaves for share in STEADY)
    inner = [(at, count) for at, count in counted if first <= count <= last]
    assert all(before[1] < after[1] for before, after in pairwise(inner))
    (begin, low), (end, high) = inner[0], inner[-1]
    return (high - low) / (end - begin)
