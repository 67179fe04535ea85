"""Cost of telemetry, and what a receiver that is away, silent or full does to a run: nothing.

The same run again and again, in turn under each condition: without any telemetry, with /metrics
read, with everything sent to a receiver, with a receiver that is not there, with one that accepts
and never answers, and with that and a queue that is full at once.
"""

import asyncio
import contextlib
import itertools
import json
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

from banyan.recipe import Recipe
from banyan.recipe_loader.load import load
from bench.harness.compared import RECIPE
from bench.harness.processor import of_services
from bench.harness.table import Result, median
from bench.overhead import Started, run_of
from tests.faults.harness import tiny_model

STEPS, REAL_STEPS, WARM = 30, 12, 5
TOKEN_S = 0.14  # of the scripted engine, as long as the arithmetic recipe's
SCRAPE_S = 15.0
OFF, READ, SENT, AWAY, SILENT, FULL = "off", "read", "sent", "away", "silent", "full"
CONDITIONS = {
    OFF: "without telemetry",
    READ: "/metrics read every 15 s",
    SENT: "spans and metrics sent, and /metrics read",
    AWAY: "a receiver that is not there",
    SILENT: "a receiver that accepts and never answers",
    FULL: "a silent receiver and a queue of 64 spans",
}
COMPARED, OTHER = 4, 2
"""Rounds: of the conditions whose processor time is compared, and of the others."""
_FIXED = ["eval.samples=0", "eval.max_rows=2", f"budget.steps={STEPS}"]
_SHARE_BAR, _STEP_BAR = "bar: at most 2", "bar: at most 0.010"


@dataclass
class Measured:
    """Steps of a condition over all its runs.

    seconds: of each step
    processor: processor seconds of all services a step, of each run
    """

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    @property
    def p99(self) -> float:
        """Seconds that 99 of 100 steps stay below."""
        return float(np.percentile(self.seconds, 99))


def run() -> Result:
    """Measure each condition in turn, in several rounds, on a scripted and on a real engine."""
    result = Result("telemetry")
    with tempfile.TemporaryDirectory() as folder:
        tiny = [f"model={tiny_model(Path(folder))}", "resources.engine=scripted"]
        tiny.append(f"resources.engine_settings={{latency_s: {TOKEN_S}, accuracy: 0.5}}")
        _add_scripted(result, _rounds(load(RECIPE, [*_FIXED, *tiny]), list(CONDITIONS), STEPS))
    _add_real(result, _rounds(load(RECIPE, _FIXED), [OFF, READ, SENT], REAL_STEPS))
    result.notes.append(
        f"{COMPARED} runs each without telemetry, read and sent, {OTHER} of the others;"
        f" steps {WARM + 1} to {STEPS} of each with the scripted engine, to {REAL_STEPS} with the"
        " real one"
    )
    return result


def _rounds(recipe: Recipe, names: Sequence[str], steps: int) -> dict[str, Measured]:
    found: dict[str, Measured] = defaultdict(Measured)
    for number in range(COMPARED):
        now = names if number < OTHER else [n for n in names if n in (OFF, READ, SENT)]
        for name in [*now[number % 3 :], *now[: number % 3]]:  # no condition is always first
            asyncio.run(_measure(name, recipe, steps, found[name]))
            seconds, spent = median(found[name].seconds), found[name].processor[-1]
            print(f"  {name}: {seconds:.3f} s, {spent:.3f} s of processors", flush=True)
    return found


def _add_scripted(result: Result, found: Mapping[str, Measured]) -> None:
    result.notes.append(_each("scripted engine", found))
    for name, words in CONDITIONS.items():
        measured = found[name]
        result.add(f"{words}: a step, median", median(measured.seconds), "s")
        result.add(f"{words}: a step, p99", measured.p99, "s")
        result.add(f"{words}: processor time, a step", median(measured.processor), "s")
    for name in (AWAY, SILENT, FULL):
        ratio = found[name].p99 / found[OFF].p99
        result.add(f"{CONDITIONS[name]}: p99 / p99 without telemetry", ratio, "", "")
    for name, bar in ((READ, _STEP_BAR), (SENT, "")):
        added = median(found[name].processor) - median(found[OFF].processor)
        result.add(f"{CONDITIONS[name]}: processor time added, a step", added, "s", bar)


def _each(engine: str, found: Mapping[str, Measured]) -> str:
    """Return the processor seconds a step of each run, in words."""
    runs = (
        f"{CONDITIONS[name]} {', '.join(f'{one:.3f}' for one in measured.processor)}"
        for name, measured in found.items()
    )
    return f"{engine}, processor seconds a step of each run: {'; '.join(runs)}"


def _add_real(result: Result, found: Mapping[str, Measured]) -> None:
    result.notes.append(_each("real engine", found))
    spent = {name: median(found[name].processor) for name in found}
    result.add("real engine, without telemetry: processor time, a step", spent[OFF], "s")
    for name in (READ, SENT):
        share = 100 * (spent[name] / spent[OFF] - 1)
        result.add(f"real engine, {CONDITIONS[name]}: processor time added", share, "%", _SHARE_BAR)


async def _measure(name: str, recipe: Recipe, steps: int, measured: Measured) -> None:
    async with contextlib.AsyncExitStack() as stack:
        env = await stack.enter_async_context(_condition(name))
        async with asyncio.timeout(900.0), run_of(recipe, env) as started:
            reading = asyncio.create_task(_scrape(started)) if name in (READ, SENT) else None
            await started.policy(WARM)
            before, at = of_services(started.supervisor), [time.monotonic()]
            for step in range(WARM + 1, steps + 1):
                await started.policy(step)
                at.append(time.monotonic())
            after = of_services(started.supervisor)
            if reading is not None:
                reading.cancel()
    spent = sum(after[service].whole - before[service].whole for service in before)
    measured.seconds += [b - a for a, b in itertools.pairwise(at)]
    measured.processor.append(spent / (steps - WARM))


@contextlib.asynccontextmanager
async def _condition(name: str) -> AsyncIterator[dict[str, str]]:
    """Yield the environment of a condition, with its receiver at work."""
    off = {"BANYAN_METRICS_LISTEN": ""}
    if name in (OFF, READ):
        yield off if name == OFF else {}
    elif name == SENT:
        async with _receiver() as port:
            yield _to(port)
    elif name == AWAY:
        yield off | _to(1)  # a port at which nobody may listen but root, and nobody does
    else:
        server = await asyncio.start_server(_accept, "127.0.0.1", 0)
        async with server:
            queue = {"OTEL_BSP_MAX_QUEUE_SIZE": "64", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "32"}
            yield off | _to(server.sockets[0].getsockname()[1]) | (queue if name == FULL else {})


def _to(port: int) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
    }


async def _accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read for ever, and never answer."""
    while await reader.read(1 << 16):
        pass
    writer.close()


class _Receiver(trace_grpc.TraceServiceServicer, metrics_grpc.MetricsServiceServicer):
    async def Export(self, request: object, context: object) -> object:
        if isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest):
            return metrics_service_pb2.ExportMetricsServiceResponse()
        return trace_service_pb2.ExportTraceServiceResponse()


_ADDERS: list[Any] = [
    trace_grpc.add_TraceServiceServicer_to_server,
    metrics_grpc.add_MetricsServiceServicer_to_server,
]


@contextlib.asynccontextmanager
async def _receiver() -> AsyncIterator[int]:
    server = grpc.aio.server()
    for add in _ADDERS:
        add(_Receiver(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(1.0)


async def _scrape(started: Started) -> None:
    """Read /metrics of every process as Prometheus does."""
    state = started.supervisor.fleet.state
    headers = {
        "Authorization": f"Bearer {state.secret}",
        "Accept": "application/openmetrics-text; version=1.0.0",
    }

    def read() -> None:
        for path in (state.path / "metrics").glob("*.json"):
            (address,) = json.loads(path.read_text())[0]["targets"]
            request = urllib.request.Request(f"http://{address}/metrics", headers=headers)
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
                answer.read()

    while True:
        await asyncio.to_thread(read)
        await asyncio.sleep(SCRAPE_S)
