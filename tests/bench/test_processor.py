"""The cost of services: their processor time is read from the kernel, and every stage is told."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from bench import overhead
from bench.harness.beside import Alone
from bench.harness.processor import Spent, of_services
from bench.harness.stages import STAGES
from bench.harness.table import Result
from bench.rivals.oneprocess import Seconds

# Two threads compute beside a main thread that waits; a child that it waited for counts, too.
_BURN = "import sys, time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
_WORK = f"""
import subprocess, sys, threading
def burn():
    exec({_BURN!r})
subprocess.run([sys.executable, "-c", {_BURN!r}], check=True)
thread = threading.Thread(target=burn)
thread.start()
thread.join()
print("done", flush=True)
sys.stdin.read()
"""


def test_processes_of_a_service_count_together_and_the_main_thread_apart() -> None:
    ended = SimpleNamespace(service="gateway", running=False, pid=0)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == b"done\n"
        children: list[Any] = [
            SimpleNamespace(service="rollout", running=True, pid=process.pid) for process in started
        ]
        supervisor: Any = SimpleNamespace(children=dict(enumerate([*children, ended])))
        read = of_services(supervisor)
    finally:
        for process in started:
            process.communicate()
    assert set(read) == {"rollout"}
    assert read["rollout"].whole >= 2 * 0.55, "the thread's and the child's 0.3 s"
    assert read["rollout"].whole - read["rollout"].loop >= 2 * 0.55


def test_the_time_of_a_step_is_the_difference_over_the_steps() -> None:
    assert (Spent(5.0, 3.0) - Spent(1.0, 1.0)) / 4 == Spent(1.0, 0.5)


def test_a_turn_tells_every_stage_of_both_ways() -> None:
    """A step takes 3 s through the services and 2 s in one process, 1 s a part of either."""
    count = overhead.WARM + 3
    published = events_pb2.PolicyPublished(metrics={"train_seconds": 1.0, "publish_seconds": 0.5})
    policies = [
        rs.StoredPolicy(stored_unix_ms=3000 * step, published=published) for step in range(count)
    ]
    stages = dict.fromkeys(STAGES, [1.0] * count)
    through = overhead.Through(policies, stages, loads=[0.25] * (count - 1))
    parts = {name: [1.0] * count for name in ("sample", "score", "prepare", "train", "refresh")}
    alone = Alone(Seconds(**parts, steps=[2.0] * (count - 1)), loads=[0.1] * count)
    result = Result("overhead")
    overhead._report(result, "made", [overhead.Turn(through, alone)])
    figures = {what: figure for what, figure, _, _ in result.rows}
    assert figures["made: overhead with the weight hand-over"] == pytest.approx(50.0)
    # Two steps count; less the hand-overs of 0.75 s they are 4.5 s.
    assert figures["made: overhead without the hand-over"] == pytest.approx(12.5)
    assert figures["made: in one process, a step"] == 2.0
    assert figures["made: added by the services, a step"] == pytest.approx(1.0)
    assert all(figures[f"made, one process: {name}"] == 1.0 for name in parts)
    assert all(figures[f"made, services: {stage}"] == 1.0 for stage in STAGES)
