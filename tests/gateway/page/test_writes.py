"""Changes: the whole id, bodies as declared, and nothing removed of a run that may go on."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from banyan.errors import Refused
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc import rpc
from services.gateway.page.app import Page
from services.gateway.page.control import CANCELLED, PAUSED, Control
from services.gateway.page.http.access import Access
from services.gateway.page.inside import PageHost
from services.gateway.page.reads import Reads
from tests.gateway.page.conftest import SECRET, client_of

BEARER = {"Authorization": f"Bearer {SECRET}"}


class Gateway:
    """A gateway that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def CancelRun(self, request: gw.CancelRunRequest, context: Any) -> gw.CancelRunResponse:
        self.asked.append((request.run_id, request.pause, request.cause))
        return gw.CancelRunResponse(run=rs.Run(run_id=request.run_id))

    async def ResumeRun(self, request: gw.ResumeRunRequest, context: Any) -> gw.ResumeRunResponse:
        self.asked.append((request.run_id, request.failed))
        return gw.ResumeRunResponse(run=rs.Run(run_id=request.run_id))


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def control(here: Any, gateway: Gateway, tmp_path: Path) -> Control:
    return Control(gateway, here.store.channel, tmp_path)


@pytest.fixture
async def client(here: Any, control: Control, tmp_path: Path) -> Any:
    page = Page(Reads(here.store.channel), Access(secret=SECRET), tmp_path, control=control)
    async with client_of(page) as client:
        client.headers.update(BEARER)
        yield client


async def test_a_run_is_paused_cancelled_and_resumed_as_asked(
    here: Any, client: httpx.AsyncClient, gateway: Gateway
) -> None:
    run = here.store.forge.run_id
    for body in ({"pause": True}, {"pause": False}, None):
        answer = await client.post(f"/api/runs/{run}/cancel", json=body)
        assert answer.status_code == 200 and answer.json()["run"]["run_id"] == run
    assert (await client.post(f"/api/runs/{run}/resume")).status_code == 200
    ended = (run, False, CANCELLED)
    assert gateway.asked == [(run, True, PAUSED), ended, ended, (run, True)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"pause": "false"}', "pause='false': true or false is allowed"),
        ('{"pause": 0}', "pause=0: true or false"),
        ('{"paused": true}', "unknown member 'paused' in the body; known: pause"),
        ("[]", "must be a JSON object"),
        ("{", "is no JSON"),
    ],
)
async def test_a_body_that_is_not_as_declared_changes_nothing(
    here: Any, client: httpx.AsyncClient, gateway: Gateway, body: str, words: str
) -> None:
    path = f"/api/runs/{here.store.forge.run_id}/cancel"
    answer = await client.post(path, content=body)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text
    assert gateway.asked == []


async def test_a_run_is_removed_by_its_whole_id_alone(here: Any, client: httpx.AsyncClient) -> None:
    run = here.store.forge.run_id
    answer = await client.delete(f"/api/runs/{run[:-2]}")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith(f"that is to be removed: {run}")


async def test_the_files_of_a_run_that_may_go_on_stay(
    here: Any, control: Control, tmp_path: Path
) -> None:
    run = (
        await rpc.call(here.store.runs.ReadRun, rs.ReadRunRequest(run_id=here.store.forge.run_id))
    ).run
    kept = tmp_path / "runs" / run.run_id / "checkpoints" / "step-1"
    kept.mkdir(parents=True)
    with pytest.raises(Refused) as refused:
        await control.remove(run)
    assert refused.value.reason == "RUN_LIVE" and kept.is_dir()


async def test_the_gateways_page_has_the_names_that_were_set(here: Any, tmp_path: Path) -> None:
    more: Any = {"listen": "", "free": True, "secret": SECRET, "state": tmp_path}
    nobody: Any = object()
    host = PageHost(
        nobody, here.store.channel, here.store.bus, hosts="a.example:80, b.example:443", **more
    )
    async with client_of(host._page()) as client:
        for name in ("a.example:80", "b.example:443"):
            assert (await client.get("/", headers={"Host": name})).status_code == 200
        assert (await client.get("/", headers={"Host": "c.example:80"})).status_code == 421
        queues = (await client.get("/api/system")).json()["queues"]
        assert {queue["stream"] for queue in queues} >= {"LINEAGE"}
