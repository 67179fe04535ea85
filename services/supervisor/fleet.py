"""Command and environment of each process. Pure."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from banyan.runtime import secret, torch_environment
from banyan.runtime.launch import OURS
from banyan.runtime.state_folder import HOST
from services.chassis.process.telemetry.providers import LISTEN as METRICS_LISTEN
from services.chassis.process.telemetry.providers import TARGET as METRICS_TARGET
from services.supervisor.child import Child
from services.supervisor.state import StateFolder

BASE = ("treestore", "verifier", "gateway")  # serve all runs, in order of start
STOP_ORDER = ("gateway", "rollout", "verifier", "learner", "treestore", "nats")
GRACE_S = {
    "gateway": 5.0,
    "rollout": 10.0,
    "verifier": 5.0,
    "learner": 60.0,
    "treestore": 15.0,
    "nats": 10.0,
}
# Before it serves, a process has nothing to save. It may be waiting for another process, or loading
# a model, deaf to signals.
LOADING_GRACE_S = 2.0
# For last words: the work of a hung process is on disk or will be repeated.
HUNG_GRACE_S = 2.0
QUIET = {**torch_environment.SETTINGS, "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class ProcessCommands:
    """The commands of the processes of one state folder.

    state: the state folder.
    join_listen: host:port for joining nodes; empty for none.
    nats_host: address that NATS listens on.
    nats_tls: PEM file of the certificate to trust for the broker, and its name; empty for no TLS.
    extra: environment of every process.
    inherited: environment that each has beside its own.
    """

    state: StateFolder
    join_listen: str = ""
    nats_host: str = HOST
    nats_tls: tuple[str, str] = ("", "")
    extra: Mapping[str, str] | None = None
    inherited: Mapping[str, str] = field(default_factory=dict)

    def nats(self, config: Path) -> Child:
        """Return the broker."""
        from services.chassis.process.nats_server import binary

        command = [*OURS, "services.chassis.lifeline", binary(), "-c", str(config)]
        env = self._env("")
        return Child(
            name="nats",
            service="nats",
            command=command,
            env={},
            log=self.state.log("nats"),
            health=env["BANYAN_NATS"],
            creds=env["BANYAN_NATS_CREDS"],
            tls=self.nats_tls,
        )

    def base(self, service: str) -> Child:
        """Return a service of all runs."""
        address = self.state.address(service)
        env = self._env(address)
        if service == "gateway":
            env["BANYAN_HTTP_LISTEN"] = self.state.address("page")
        if service == "gateway" and self.join_listen:
            env["BANYAN_JOIN_LISTEN"] = self.join_listen
            env["BANYAN_JOIN_NATS"] = f":{self.state.ports['nats']}"
            env["BANYAN_VERIFIER"] = self.state.address("verifier")
        return self._python(service, service, env, address)

    def worker(
        self,
        run_id: str,
        service: str,
        replica: int,
        *,
        threads: int,
        port: int,
        ranks: int = 1,
        engine: str = "",
    ) -> Child:
        """Return a process of one run. A learner also gets its number of ranks.

        engine: the engine of a rollout node.
        """
        name = f"{service}-{run_id}-{replica}"
        address = f"{HOST}:{port}"
        env = self._env(address) | {
            "BANYAN_RUN": run_id,
            "BANYAN_THREADS": str(threads),
            "BANYAN_THREADS_FILE": str(self.state.threads(name)),
            "OMP_NUM_THREADS": str(threads),
            "BANYAN_NODE_ID": f"{service}-{replica}",
        }
        if service == "rollout":
            env["BANYAN_VERIFIER"] = self.state.address("verifier")
        if service == "learner":
            env["BANYAN_RANKS"] = str(ranks)
        imports_torch = ranks == 1 if service == "learner" else engine == "torch"
        if imports_torch:  # it would do so itself, but may find torch imported
            torch_environment.bind(env, threads, self.inherited)
        child = self._python(name, service, env, address)
        child.run_id, child.replica, child.warm = run_id, replica, imports_torch
        return child

    def _env(self, listen: str) -> dict[str, str]:
        nats_host = HOST if self.nats_host == "0.0.0.0" else self.nats_host
        return {
            **QUIET,
            **(self.extra or {}),
            "BANYAN_NATS": f"nats://{nats_host}:{self.state.ports['nats']}",
            "BANYAN_NATS_CREDS": str(self.state.path / "nats" / "services.creds"),
            "BANYAN_STORE": self.state.address("treestore"),
            "BANYAN_LISTEN": listen,
            "BANYAN_STATE": str(self.state.path),
            "BANYAN_SECRET_FILE": str(self.state.path / secret.FILE),
            "BANYAN_NATS_TLS_ROOT": self.nats_tls[0],
            "BANYAN_NATS_TLS_NAME": self.nats_tls[1],
        }

    def _python(self, name: str, service: str, env: dict[str, str], health: str) -> Child:
        command = [*OURS, f"services.{service}"]
        log = self.state.log(name)
        asked = {**self.inherited, **(self.extra or {})}
        listen = asked.get(METRICS_LISTEN, f"{HOST}:0")
        env |= {METRICS_LISTEN: listen, METRICS_TARGET: str(self.state.metrics(name))}
        return Child(name=name, service=service, command=command, env=env, log=log, health=health)


def grace_s(child: Child) -> float:
    """Return the seconds that a child may take to end before it is killed."""
    return GRACE_S[child.service] if child.state == "ready" else LOADING_GRACE_S


def threads_for(
    service: str,
    threads: int | str,
    *,
    max_staleness: int,
    rollout_nodes: int,
    runs: int = 1,
    cores: int | None = None,
) -> int:
    """Return the Torch threads of a process.

    They are all cores of its run if sampling and training take turns, else a part of them. `runs`:
    number of runs that have processes now; each has its share of the cores.
    """
    if isinstance(threads, int):
        return threads
    cores = max(1, (cores or len(os.sched_getaffinity(0))) // max(1, runs))
    if max_staleness == 0:
        learner, nodes = cores, cores
    else:  # each node gets a thread before the learner gets its second
        learner = max(1, min(cores // 2, cores - rollout_nodes))
        nodes = cores - learner
    return learner if service == "learner" else max(1, nodes // rollout_nodes)
