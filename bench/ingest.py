"""Lineage ingest: segments a second through broker, treestore and database.

The rival is a raw bulk insert of the same rows.
"""

import asyncio
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from banyan.digest import canonical, row_digest, tree_id
from banyan.runtime import ports
from banyan.segment import Kind, Sampling, Segment
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1 import treestore_service_pb2_grpc as ts_grpc
from banyan.wire.segments import segment_to_wire
from bench.harness.table import Result, median
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.process import nats_server
from services.chassis.rpc import rpc
from services.treestore.service import running
from services.treestore.storage.settings import Settings
from tests.treestore.postgres import running as running_postgres

TREES = 64
BRANCHES = 64
TOKENS = 32
RUNS = 3
RUN = "ingest-00000000"


def run() -> Result:
    """Return the median of several fresh stores on each database; every commit reaches the disk."""
    result = Result("ingest")
    sqlite, postgres = _Rates(), _Rates()
    with running_postgres(durable=True) as server:
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as folder:
                sqlite.note(
                    asyncio.run(_through(Path(folder), "")),
                    _raw_sqlite(Path(folder) / "raw.sqlite"),
                )
                address = server.fresh()
                postgres.note(
                    asyncio.run(_through(Path(folder) / "pg", address)),
                    _raw_postgres(server.fresh()),
                )
    sqlite.report(result, "SQLite (synchronous FULL)")
    postgres.report(result, "PostgreSQL (fsync on)")
    result.notes.append(
        f"{TREES} trees x {BRANCHES} segments x {TOKENS} tokens, {RUNS} alternating runs, medians"
    )
    return result


class _Rates:
    """Segments a second of several runs."""

    def __init__(self) -> None:
        self.through: list[float] = []
        self.raw: list[float] = []

    def note(self, through: float, raw: float) -> None:
        """Record a run's figures."""
        self.through.append(through)
        self.raw.append(raw)

    def report(self, result: Result, where: str) -> None:
        """Add the medians."""
        result.add(
            f"{where}: through broker, treestore and database", median(self.through), "seg/s"
        )
        result.add(f"{where}: raw executemany, one transaction", median(self.raw), "seg/s")
        ratios = [b / a for a, b in zip(self.through, self.raw, strict=True)]
        result.add(f"{where}: raw / through", median(ratios), "x")


def _spec(number: int) -> tree_pb2.TreeSpec:
    row = {"question": str(number)}
    digest = row_digest(row)
    group = f"{RUN}/train/{number}"
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
        score_deadline_ms=600_000,
        max_claims=5,
    )


def _segments(spec: tree_pb2.TreeSpec) -> list[Segment]:
    root = Segment(spec.tree_id, b"", 0, 0, Kind.PROMPT, np.arange(40, dtype=np.int32))
    tokens, logprobs = np.arange(TOKENS, dtype=np.int32), -np.ones(TOKENS, np.float32)
    sampling = Sampling(max_new_tokens=TOKENS)
    branches = [
        Segment(
            tree_id=spec.tree_id,
            parent=root.id,
            fork=40,
            ordinal=ordinal,
            kind=Kind.POLICY,
            tokens_T=tokens,
            logprobs_T=logprobs,
            policy=b"p" * 32,
            sampling=sampling,
        )
        for ordinal in range(BRANCHES)
    ]
    return [root, *branches]


async def _through(folder: Path, database: str) -> float:
    address = f"127.0.0.1:{ports.free_port()}"
    config = nats_server.write_config(folder / "nats", address)
    process = nats_server.start(config, folder / "nats.log")
    try:
        nats_server.await_listening(address, process, folder / "nats.log")
        settings = Settings(
            nats=f"nats://{address}", listen="127.0.0.1:0", state=folder, database=database
        )
        async with running(settings) as (server, _), rpc.channel(server.address) as channel:
            bus = await Bus.connect(f"nats://{address}", "bench")
            try:
                return await _publish(bus, channel)
            finally:
                await bus.close()
    finally:
        process.terminate()
        process.wait(10)


async def _publish(bus: Bus, channel: Any) -> float:
    runs, store = rs_grpc.RunStoreServiceStub(channel), ts_grpc.TreeStoreServiceStub(channel)
    epoch = (
        await rpc.call(
            runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest(gateway_id="b"), 10.0, 10.0
        )
    ).epoch
    run_row = rs.Run(run_id=RUN, recipe_json="{}", state=rs.RUN_STATE_TRAINING)
    await rpc.call(runs.PutRun, rs.PutRunRequest(run=run_row, request_id="b", gateway_epoch=epoch))
    specs = [_spec(n) for n in range(TREES)]
    trees = [(spec, _segments(spec)) for spec in specs]
    for spec in specs:
        opened = events_pb2.TreesOpened(
            trees=[events_pb2.TreeOpened(spec=spec, gateway_epoch=epoch)]
        )
        await bus.publish(subjects.lineage(RUN, "opened"), opened, f"o{spec.group_ordinal}")
    epochs = [await _claim(store, spec) for spec in specs]
    begun = time.perf_counter()
    for (spec, segments), claim in zip(trees, epochs, strict=True):
        grown = [
            events_pb2.GrownSegment(segment=segment_to_wire(s), claim_epoch=claim) for s in segments
        ]
        message = events_pb2.SegmentsGrown(run_id=RUN, node_id="n", segments=grown)
        await bus.publish(subjects.lineage(RUN, "segment"), message, f"s{spec.group_ordinal}")
    for (spec, segments), claim in zip(trees, epochs, strict=True):
        ids = [s.id for s in segments]
        wait = ts.AwaitIngestedRequest(
            tree_id=spec.tree_id, epoch=claim, segment_ids=ids, deadline_ms=60_000
        )
        answer = await rpc.call(store.AwaitIngested, wait, 70.0)
        if answer.missing:
            raise RuntimeError(f"{len(answer.missing)} segments are missing")
    return TREES * (BRANCHES + 1) / (time.perf_counter() - begun)


async def _claim(trees: ts_grpc.TreeStoreServiceStub, spec: tree_pb2.TreeSpec) -> int:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            answer = await rpc.call(
                trees.ClaimTree, ts.ClaimTreeRequest(tree_id=spec.tree_id, node_id="n", ticket=1)
            )
            return int(answer.epoch)
        except LookupError:
            await asyncio.sleep(0.01)  # opened, but not ingested yet
    raise TimeoutError("a tree was not ingested within 30 s")


def _rows() -> list[tuple[object, ...]]:
    """Return the same bytes as rows of one table of the same columns."""
    return [
        (
            s.id,
            s.tree_id,
            s.parent,
            s.fork,
            s.ordinal,
            int(s.kind),
            s.tokens_T.tobytes(),
            s.logprobs_T.tobytes(),
            s.policy,
            s.sampling.encode(),
            int(s.finish),
        )
        for number in range(TREES)
        for s in _segments(_spec(number))
    ]


_COLUMNS = (
    "id {b} unique, tree {b}, parent {b}, fork int, ordinal int, kind int, tokens {b}, logprobs "
    "{b}, policy {b}, sampling {b}, finish int"
)


def _raw_sqlite(path: Path) -> float:
    """Insert by the standard library."""
    rows = _rows()
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode=wal")
    database.execute("pragma synchronous=full")
    database.execute(f"create table segments (n integer primary key, {_COLUMNS.format(b='blob')})")
    begun = time.perf_counter()
    with database:
        database.executemany(f"insert into segments values (null{', ?' * 11})", rows)
    seconds = time.perf_counter() - begun
    database.close()
    return len(rows) / seconds


def _raw_postgres(address: str) -> float:
    """Insert by psycopg, which pipelines it."""
    rows = _rows()
    with psycopg.connect(address) as database:
        columns = _COLUMNS.format(b="bytea")
        database.execute(f"create table segments (n bigserial primary key, {columns})".encode())
        database.commit()
        begun = time.perf_counter()
        with database.cursor() as cursor:
            cursor.executemany(f"insert into segments values (default{', %s' * 11})".encode(), rows)
        database.commit()
        return len(rows) / (time.perf_counter() - begun)
