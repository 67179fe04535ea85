"""The processor time of services is read from the kernel."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from bench.harness.processor import Spent, of_services

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
