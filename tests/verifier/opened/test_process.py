"""Opened environments end with the process that holds them, which says so."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from banyan.errors import NotFound, Refused
from banyan.runtime import ports
from banyan.v1 import verifier_service_pb2 as pb
from banyan.v1.verifier_service_pb2_grpc import VerifierServiceStub
from services.chassis.rpc import rpc
from tests.broker import NatsServer


async def test_a_verifier_that_is_killed_takes_them_along_and_the_next_one_says_so(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    listen = f"127.0.0.1:{ports.free_port()}"
    secret = tmp_path / "secret"
    secret.write_text("s" * 64)
    environment = {
        **os.environ,
        "BANYAN_NATS": nats_server.url,
        "BANYAN_LISTEN": listen,
        "BANYAN_STATE": str(tmp_path),
        "BANYAN_SECRET_FILE": str(secret),
    }
    command = [sys.executable, "-m", "services.verifier"]
    process = subprocess.Popen(command, env=environment)
    channel = rpc.channel(listen, secret="s" * 64)
    stub = VerifierServiceStub(channel)
    try:
        request = pb.OpenEnvironmentRequest(environment="calculator")
        key = (await rpc.call(stub.OpenEnvironment, request, patience_s=30)).environment_id
        step = pb.StepRequest(environment_id=key, action="<calc>6 * 7</calc>")
        assert (await rpc.call(stub.Step, step)).observation == "42"
        async with rpc.channel(listen, secret="0" * 64) as stranger:
            with pytest.raises(Refused, match="secret"):
                await rpc.call(VerifierServiceStub(stranger).Step, step)
        process.kill()
        await asyncio.to_thread(process.wait, 10)
        process = subprocess.Popen(command, env=environment)
        with pytest.raises(NotFound, match="opened in another one, or before this one started"):
            await rpc.call(stub.Step, step, patience_s=30)
        again = (await rpc.call(stub.OpenEnvironment, request)).environment_id
        assert again[:8] != key[:8]
    finally:
        await channel.close()
        process.kill()
        process.wait(10)
