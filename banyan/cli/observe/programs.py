"""Programs that show metrics and traces: how each is found and started, and how to get it."""

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from banyan.cli.observe.tool import Tool, running
from banyan.errors import InvalidInput
from banyan.observability.prometheus import configuration
from banyan.observability.rules import rule_file
from banyan.runtime import secret

HOST = "127.0.0.1"
PROMETHEUS_S, PHOENIX_S = 30.0, 120.0
NO_PROMETHEUS = (
    "Prometheus is not installed: `apt install prometheus` or `brew install prometheus`, or put its"
    " binary on PATH"
)
NO_VIEWER = (
    "no trace viewer is installed: `uv tool install arize-phoenix` (0.6 GB, Elastic License 2.0)"
    " gives the command `phoenix`; another receiver of OTLP over gRPC does as well"
)


@dataclass(frozen=True)
class Viewer:
    """A trace viewer.

    tool: the program
    receiver: where it takes spans, by OTLP over gRPC
    """

    tool: Tool
    receiver: str

    def trace(self, trace_id: str) -> str:
        """Return the address of a trace."""
        return f"{self.tool.address}/redirects/traces/{trace_id}"


def found(name: str) -> str:
    """Return the path of a program, on PATH or beside this interpreter; empty if missing."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if beside.exists() else "")


@contextlib.contextmanager
def _alone(home: Path, name: str) -> Iterator[None]:
    """Have a program's data for this process alone: not every build of Prometheus locks its own.

    Raise InvalidInput if another process has them.
    """
    with open(home / f"{name.lower()}.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise InvalidInput(
                f"{name} already runs on {home.parent}, for the banyan observe of process"
                f" {file.read().strip() or 'unknown'}: use its address, or end it first"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextlib.contextmanager
def prometheus(binary: str, state: Path, port: int, every_s: float) -> Iterator[Tool]:
    """Run Prometheus on the processes of a state folder. Raise InvalidInput if it ends at once."""
    from services.chassis.process.private_files import folder

    home = folder(state / "observe")
    rules, config = home / "rules.yaml", home / "prometheus.yaml"
    command = [
        binary,
        f"--config.file={config}",
        f"--storage.tsdb.path={home / 'prometheus'}",
        f"--web.listen-address={HOST}:{port}",
    ]
    log, address = home / "prometheus.log", f"http://{HOST}:{port}"
    with _alone(home, "Prometheus"):
        rules.write_text(rule_file())
        config.write_text(configuration(state, rules, secret.make_metrics_key(state), every_s))
        with running("Prometheus", command, address=address, log=log, env={}) as tool:
            tool.await_answer("/-/ready", PROMETHEUS_S)
            yield tool


def pages(tool: Tool) -> str:
    """Return the path below which a running Prometheus has its pages of alerts and targets.

    Debian's has no React, and its pages are those of before, at `/classic`. What has neither is
    given the usual path, which is empty.
    """
    return next((path for path in ("", "/classic") if tool.answers(f"{path}/alerts")), "")


@contextlib.contextmanager
def phoenix(binary: str, state: Path, port: int, receiver_port: int) -> Iterator[Viewer]:
    """Run Arize Phoenix, a viewer of traces. Raise InvalidInput if it ends at once."""
    from services.chassis.process.private_files import folder

    home = folder(state / "observe")
    env = {
        "PHOENIX_HOST": HOST,
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(receiver_port),
        "PHOENIX_WORKING_DIR": str(folder(home / "phoenix")),
        "PHOENIX_TELEMETRY_ENABLED": "false",  # nothing of a run goes to its makers
    }
    log, address = home / "phoenix.log", f"http://{HOST}:{port}"
    with (
        _alone(home, "Phoenix"),
        running("Phoenix", [binary, "serve"], address=address, log=log, env=env) as tool,
    ):
        tool.await_answer("/healthz", PHOENIX_S)
        yield Viewer(tool, f"http://{HOST}:{receiver_port}")
