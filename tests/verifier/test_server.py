"""VerifierService over real gRPC, and the process itself."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from banyan.runtime import ports
from banyan.v1 import tree_pb2, verifier_service_pb2_grpc
from banyan.v1 import verifier_service_pb2 as pb
from services.chassis.rpc import rpc
from services.verifier.environments.actions import Actions
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.scoring import Scoring
from services.verifier.server import NAME, VerifierServer, adder


class Unreached:
    """A store that nothing asks."""

    async def read_action(self, tree_id, epoch, action, deadline_s, caller):
        raise AssertionError("no action")


@pytest.fixture
async def stub():
    scoring = Scoring(Pool(Limits(deadline_s=5.0)))
    service = VerifierServer(scoring, 4, Actions(Unreached(), b""), None)
    server = await rpc.serve("127.0.0.1:0", [adder(service)], [NAME])
    channel = rpc.channel(server.address)
    yield verifier_service_pb2_grpc.VerifierServiceStub(channel)
    await channel.close()
    await server.stop(0)
    await scoring.close()


async def answers(stub, requests):
    return {a.request_id: a async for a in stub.Score(iter(requests), timeout=20)}


async def test_a_stream_of_completions_is_scored(stub):
    row = json.dumps({"answer": 7})
    requests = [
        pb.ScoreRequest(request_id=str(i), scorer="number", completion=str(i), row_json=row)
        for i in range(50)
    ]
    found = await answers(stub, requests)
    assert len(found) == 50
    assert [k for k, a in found.items() if a.score.value == 1.0] == ["7"]
    assert found["7"].scorer_version == "2"


async def test_what_cannot_be_scored_says_why_and_the_stream_goes_on(stub):
    requests = [
        pb.ScoreRequest(request_id="json", scorer="number", completion="7", row_json="{"),
        pb.ScoreRequest(request_id="list", scorer="number", completion="7", row_json="[]"),
        pb.ScoreRequest(request_id="name", scorer="nothing", completion="7", row_json="{}"),
        pb.ScoreRequest(request_id="regex", scorer="regex", completion="7", row_json="{}"),
        pb.ScoreRequest(
            request_id="good", scorer="number", completion="7", row_json='{"answer": 7}'
        ),
    ]
    found = await answers(stub, requests)
    assert found["good"].score.value == 1.0
    for name, word in (
        ("json", "JSON"),
        ("list", "object"),
        ("name", "nothing"),
        ("regex", "pattern"),
    ):
        assert found[name].score.state == tree_pb2.SCORE_STATE_UNSCORABLE
        assert word in found[name].score.reason


async def test_scorers_are_listed(stub):
    listed = await rpc.call(stub.ListScorers, pb.ListScorersRequest())
    assert {"number", "regex", "reasoning-gym"} <= set(listed.scorers)


async def test_the_process_serves_and_stops_cleanly(nats_server, eventually):
    listen = f"127.0.0.1:{ports.free_port()}"
    environment = {**os.environ, "BANYAN_NATS": nats_server.url, "BANYAN_LISTEN": listen}
    process = subprocess.Popen([sys.executable, "-m", "services.verifier"], env=environment)
    channel = rpc.channel(listen)
    try:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await rpc.call(
            health.Check, health_pb2.HealthCheckRequest(service=NAME), patience_s=15
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = verifier_service_pb2_grpc.VerifierServiceStub(channel)
        request = pb.ScoreRequest(request_id="1", scorer="regex", completion="7", row_json="{}")
        assert "pattern" in (await answers(stub, [request]))["1"].score.reason
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        await channel.close()
        if process.poll() is None:
            process.kill()
            process.wait(5)


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look where a confined process is")
async def test_nothing_outlives_a_verifier_that_is_killed(nats_server, eventually, tmp_path):
    listen = f"127.0.0.1:{ports.free_port()}"
    folder = Path(__file__).parent
    environment = {
        **os.environ,
        "BANYAN_NATS": nats_server.url,
        "BANYAN_LISTEN": listen,
        "TMPDIR": str(tmp_path),
    }
    environment["PYTHONPATH"] = str(folder)
    process = subprocess.Popen([sys.executable, "-m", "services.verifier"], env=environment)
    channel = rpc.channel(listen)
    try:
        stub = verifier_service_pb2_grpc.VerifierServiceStub(channel)
        await rpc.call(stub.ListScorers, pb.ListScorersRequest(), patience_s=15)
        request = pb.ScoreRequest(
            request_id="1", scorer="rewards:sleeps", completion="7", row_json="{}"
        )
        pending = asyncio.create_task(answers(stub, [request]))
        # More than two once the attempt has waited too long, and another child tries.
        await eventually(lambda: _inside(tmp_path) >= 2, 30.0, "a warm child and its attempt")
        process.kill()
        await asyncio.to_thread(process.wait, 5)
        await eventually(lambda: _inside(tmp_path) == 0, 20.0, "the end of both")
        with pytest.raises(grpc.aio.AioRpcError):
            await pending
    finally:
        await channel.close()
        process.kill()
        process.wait(5)


def _inside(folder: Path) -> int:
    count = 0
    for process in Path("/proc").iterdir():
        try:
            count += process.name.isdigit() and os.readlink(process / "cwd").startswith(
                f"{folder}/banyan-scorer-"
            )
        except OSError:
            continue
    return count


def test_a_bad_setting_is_one_line_and_status_2():
    environment = {**os.environ, "BANYAN_CONCURRENCY": "many"}
    done = subprocess.run(
        [sys.executable, "-m", "services.verifier"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    assert (
        done.stderr.strip().splitlines()[-1]
        == "verifier: BANYAN_CONCURRENCY='many' must be of type int"
    )


def test_a_row_that_json_does_not_have_is_named() -> None:
    from banyan.errors import InvalidInput
    from services.verifier.sandbox import frames

    with pytest.raises(InvalidInput, match="no JSON"):
        frames.pack({"row": {"x": float("nan")}})
