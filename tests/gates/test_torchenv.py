"""Processes that load torch settle how its threads wait before it is imported, however they were started."""

import json
import os
import subprocess
import sys

import pytest

from banyan import torchenv

_MAIN = """
import json, os, sys
from services.chassis import process
from services.{service}.__main__ import main
process.main = lambda name, run: print(json.dumps([name, "torch" in sys.modules, dict(os.environ)]))
main()
"""


@pytest.mark.parametrize("service", ["rollout", "learner"])
@pytest.mark.parametrize("own", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_threads_are_settled_before_torch_is_imported(service: str, own: dict[str, str]) -> None:
    bare = {name: value for name, value in os.environ.items() if name not in torchenv.SETTINGS}
    command = [sys.executable, "-c", _MAIN.format(service=service)]
    said = subprocess.run(command, env=bare | own, capture_output=True, text=True, check=True, timeout=60).stdout
    name, torch, environ = json.loads(said)
    assert name == service and not torch
    assert {key: environ.get(key) for key in torchenv.SETTINGS} == {**torchenv.SETTINGS, **own}
