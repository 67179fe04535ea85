"""Probes of a process: gRPC's health service, or for the broker a request to JetStream."""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import nats.errors
from grpc_health.v1 import health_pb2, health_pb2_grpc
from nats.js.errors import Error as JetStreamError

from banyan.errors import BanyanError
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.flush import flushed
from services.chassis.rpc import rpc
from services.chassis.rpc.health import LIVENESS
from services.supervisor.broker_disk import BrokerDisk
from services.supervisor.child import Child

_NATS = "nats://"
_SERVING = health_pb2.HealthCheckResponse.SERVING


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a probe.

    ready: it serves.
    alive: all its loops and threads make progress, as far as it knows itself.
    why: reason to start it again at once; empty if there is none.
    """

    ready: bool
    alive: bool
    why: str = ""


class Probe(Protocol):
    """A way to probe one process."""

    async def ask(self, timeout_s: float) -> Answer | None:
        """Return the answer; None if there was none in time."""
        ...

    async def aclose(self) -> None:
        """End the connection."""
        ...


def probe_of(child: Child) -> Probe:
    """Return the probe for a child's address."""
    if child.health.startswith(_NATS):
        return NatsProbe(
            child.health,
            child.creds,
            BrokerDisk(child.log, Path(child.creds).parent),
            tls=child.tls,
        )
    return GrpcProbe(child.health)


class GrpcProbe:
    """A probe of readiness and liveness. A server without the latter is alive if it answers."""

    def __init__(self, address: str) -> None:
        self._channel = rpc.channel(address)
        self._stub: Any = health_pb2_grpc.HealthStub(self._channel)

    async def ask(self, timeout_s: float) -> Answer | None:
        """Return both answers, requested together."""
        try:
            ready, alive = await asyncio.gather(
                self._check("", timeout_s), self._check(LIVENESS, timeout_s)
            )
        except grpc.RpcError:
            return None
        return Answer(ready == _SERVING, alive in (None, _SERVING))

    async def _check(self, service: str, timeout_s: float) -> int | None:
        try:
            answer = await self._stub.Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise
        return int(answer.status)

    async def aclose(self) -> None:
        """End the connection."""
        await self._channel.close(None)


class NatsProbe:
    """A client of the broker with a service's rights: a ping, then a request to JetStream.

    disk: the disk of its streams, if the broker's log can be read.
    tls: PEM file of the only certificate to trust, and its name; empty for no TLS.
    """

    def __init__(
        self,
        url: str,
        creds: str,
        disk: BrokerDisk | None = None,
        tls: tuple[str, str] = ("", ""),
    ) -> None:
        self._url, self._creds, self._disk, self._tls = url, creds, disk, tls
        self._bus: Bus | None = None

    async def ask(self, timeout_s: float) -> Answer | None:
        """Return ready and alive if both answers come in time."""
        try:
            self._bus = self._bus or await Bus.connect(
                self._url,
                "supervisor",
                creds=self._creds,
                tls_root=self._tls[0],
                tls_name=self._tls[1],
                patience_s=timeout_s,
            )
            async with asyncio.timeout(timeout_s):
                await flushed(self._bus.client, timeout_s)
                await self._bus.client.jetstream(timeout=timeout_s).account_info()
        except (BanyanError, OSError, nats.errors.Error, JetStreamError):
            # OSError includes TimeoutError.
            return None
        why = await asyncio.to_thread(self._disk.problem) if self._disk is not None else ""
        return Answer(True, True, why)

    async def aclose(self) -> None:
        """End the connection without waiting for pending messages."""
        bus, self._bus = self._bus, None
        if bus is not None:
            with contextlib.suppress(OSError, nats.errors.Error):
                await bus.close()
