"""Processes that load torch set the waiting of its threads before, however they were started."""

import json
import os
import subprocess
import sys

import pytest

from banyan.runtime import torch_environment

_MAIN = """
import json, os, sys
from services.chassis.process import process
from services.{service}.__main__ import main
process.main = lambda name, run: print(json.dumps([name, "torch" in sys.modules, dict(os.environ)]))
main()
"""


@pytest.mark.parametrize("service", ["rollout", "learner"])
@pytest.mark.parametrize("own", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_threads_are_settled_before_torch_is_imported(service: str, own: dict[str, str]) -> None:
    bare = {
        name: value for name, value in os.environ.items() if name not in torch_environment.SETTINGS
    }
    command = [sys.executable, "-c", _MAIN.format(service=service)]
    output = subprocess.run(
        command, env=bare | own, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    name, torch, environ = json.loads(output)
    assert name == service and not torch
    assert {key: environ.get(key) for key in torch_environment.SETTINGS} == {
        **torch_environment.SETTINGS,
        **own,
    }


_BOUND = """
import json, os, threading
from banyan.runtime import torch_environment
torch_environment.bind(os.environ, {threads})
import torch
torch_environment.roam()
seen = {{}}

def look(name):
    seen[name] = len(os.sched_getaffinity(0))

def compute():
    torch.randn(4_000_000).relu()
    look("compute")
    from services.chassis.weights import file
    before = set(os.listdir("/proc/self/task"))
    kept = file.hasher()
    new = set(os.listdir("/proc/self/task")) - before
    seen["digest"] = min(len(os.sched_getaffinity(int(t))) for t in new)

thread = threading.Thread(target=compute)
thread.start()
thread.join()
look("main")
print(json.dumps(seen))
"""


@pytest.mark.skipif(len(torch_environment.CORES) < 2, reason="one core: nothing to keep to")
@pytest.mark.parametrize(
    ("threads", "compute"), [(len(torch_environment.CORES), 1), (1, len(torch_environment.CORES))]
)
def test_threads_keep_to_their_cores_where_there_is_one_for_each(
    threads: int, compute: int
) -> None:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    command = [sys.executable, "-c", _BOUND.format(threads=threads)]
    output = json.loads(
        subprocess.run(
            command, env=bare, capture_output=True, text=True, check=True, timeout=60
        ).stdout
    )
    assert output == {
        "compute": compute,
        "main": len(torch_environment.CORES),
        "digest": len(torch_environment.CORES),
    }


_FREED = """
import ctypes, sys
from banyan.runtime import torch_environment
held = lambda: int(open("/proc/self/statm").read().split()[1])
if sys.argv[1] == "keep":
    assert torch_environment.keep_memory()
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
at = malloc(ctypes.c_size_t(64 << 20))
ctypes.memset(at, 1, 64 << 20)
full = held()
free(at)
print(full - held())
"""


@pytest.mark.parametrize(("way", "given_back"), [("keep", False), ("as it is", True)])
def test_memory_that_is_freed_is_kept_where_that_is_asked(way: str, given_back: bool) -> None:
    command = [sys.executable, "-c", _FREED, way]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert (int(output) * 4096 > 32 << 20) == given_back
