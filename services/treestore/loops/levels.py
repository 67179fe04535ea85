"""Levels for dashboards: trees under way, members, what waits in the store and in the broker."""

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial

import nats.errors
from nats.js.errors import Error as JetStreamError
from sqlalchemy import Connection

from banyan.doctor.history import held_out
from banyan.errors import TemporaryError
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.process import telemetry
from services.treestore.control import members, progress, runs
from services.treestore.queries import stats
from services.treestore.unit_of_work import counts
from services.treestore.unit_of_work.context import Context

log = logging.getLogger(__name__)
EVERY_S = 5.0
_STATES = ("growing", "scoring", "closed")
_QUEUES = ("outbox", "parked", "dead")
_STREAMS = (subjects.LINEAGE, subjects.GROWTH, subjects.TRAIN, subjects.DEAD)


class Levels:
    """The loop that states the levels; it reads nothing where nobody takes metrics."""

    def __init__(self, context: Context, bus: Bus) -> None:
        self._context, self._bus, self._ages = context, bus, StepAges()

    async def run(self) -> None:
        """State the levels until cancelled."""
        if not telemetry.measuring():
            await asyncio.Event().wait()
        while True:
            try:
                await self._context.database.read(partial(self._state_store, self._context.now()))
                for stream in _STREAMS:
                    await self._state_stream(stream)
            except (TimeoutError, nats.errors.Error, JetStreamError, TemporaryError) as error:
                log.debug("no levels now: %s", error)
            await asyncio.sleep(EVERY_S)

    async def _state_stream(self, stream: str) -> None:
        state = await self._bus.state(stream)
        telemetry.level("banyan.log.bytes", state.bytes, banyan_queue=stream)
        for depth in await self._bus.depths(stream):
            unanswered = depth.waiting + depth.unacknowledged
            queue = f"{stream}/{depth.consumer}"
            telemetry.level("banyan.log.waiting", unanswered, banyan_queue=queue)

    def _state_store(self, now_ms: int, connection: Connection) -> None:
        live = runs.read_all(connection, rs.ReadRunsRequest(live_only=True), now_ms).runs
        for run in live:
            counted = counts.read(connection, run.run_id)
            for state in _STATES:
                trees = counted.get(f"trees_{state}", 0)
                telemetry.level(
                    "banyan.trees.held", trees, banyan_run=run.run_id, banyan_state=state
                )
            present = sum(m.present for m in members.read(connection, run.run_id, now_ms).members)
            telemetry.level("banyan.members", present, banyan_run=run.run_id)
            telemetry.level("banyan.run.step", run.step, banyan_run=run.run_id)
            evaluations = progress.read(connection, run.run_id, now_ms).evals
            if measured := held_out(evaluations, run.step):
                newest = max(measured, key=lambda m: m.step)
                telemetry.level("banyan.run.held_out_reward", newest.reward, banyan_run=run.run_id)
        for run_id, age_s in self._ages.of(live, time.monotonic()).items():
            telemetry.level("banyan.run.step_age", age_s, banyan_run=run_id)
        whole = stats.read(connection, "")
        for queue in _QUEUES:
            telemetry.level("banyan.store.waiting", whole[queue], banyan_queue=queue)


class StepAges:
    """Ages of the newest steps of runs that train, as far as this process has seen them.

    Evaluations and pauses make no steps, so the time of one that ended does not count.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, float]] = {}

    def of(self, live: Iterable[rs.Run], now_s: float) -> dict[str, float]:
        """Return the seconds since the newest step of each run that trains."""
        training = {run.run_id: run.step for run in live if run.state == rs.RUN_STATE_TRAINING}
        self._since = {
            run_id: self._since[run_id]
            if self._since.get(run_id, (None, 0.0))[0] == step
            else (step, now_s)
            for run_id, step in training.items()
        }
        return {run_id: now_s - since for run_id, (_, since) in self._since.items()}
