"""A page over a real store in this process, and clients of it: in memory, and on a real port."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc import rpc
from services.gateway.page.app import Page
from services.gateway.page.host import serving
from services.gateway.page.http import streams
from services.gateway.page.http.access import Access
from services.gateway.page.reads import Reads
from tests.gateway.page.made_trees import RunForge
from tests.treestore.client import Store, served

SECRET = "5" * 64
HOST = "http://127.0.0.1:7777"


@dataclass
class Site:
    """A page, its store, and a client that needs no port."""

    page: Page
    store: Store
    client: httpx.AsyncClient

    async def get(self, path: str, status: int = 200, **more: Any) -> Any:
        answer = await self.client.get(path, **more)
        assert answer.status_code == status, answer.text
        return answer.json()


def client_of(page: Page, base: str = HOST) -> httpx.AsyncClient:
    """Return a client whose requests reach the app without a port."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(page.app), base_url=base)


async def step(here: Any, number: int) -> None:
    """Publish the policy of a step."""
    policy = tree_pb2.PolicyRef(learner_epoch=1, step=number, digest=bytes([number + 1]) * 32)
    metrics = {"reward": number / 10, "kl": float("nan")} if number else {}
    published = events_pb2.PolicyPublished(
        run_id=here.store.forge.run_id, policy=policy, metrics=metrics
    )
    await rpc.call(here.store.runs.PutPolicy, rs.PutPolicyRequest(policy=published))


@pytest.fixture
def fast_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the loops of streams look fifty times a second."""
    monkeypatch.setattr(streams, "EVERY_S", 0.02)


@pytest.fixture
def make_page() -> Callable[..., Page]:
    def make(store: Store, state: Path, **more: Any) -> Page:
        return Page(Reads(store.channel), Access(secret=SECRET), state, **more)

    return make


@pytest.fixture
async def here(
    nats_server: Any, tmp_path: Path, make_page: Callable[..., Page]
) -> AsyncIterator[Site]:
    """A page over a new store with a run."""
    async with served(nats_server.url, tmp_path / "state", begin=False) as store:
        store.forge = RunForge()
        await store.begin()
        page = make_page(store, tmp_path / "state")
        async with client_of(page) as client:
            yield Site(page, store, client)


@contextlib.asynccontextmanager
async def on_a_port(page: Page) -> AsyncIterator[str]:
    """Serve a page; yield the address."""
    async with serving(page.app, page.hub, "127.0.0.1:0") as address:
        yield address
