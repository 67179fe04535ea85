"""Fixtures that meet the real thing: a nats-server, and waits for conditions with a deadline."""

import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterator

import pytest

from banyan.runtime import torch_environment

os.environ.update({**torch_environment.SETTINGS, **os.environ})
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault(
    "GRPC_ENABLE_FORK_SUPPORT", "0"
)  # its handlers crash a forked child; PostgreSQL as nobody needs one

from tests import broker
from tests.broker import NatsServer

gc.disable()  # until the tests are read: each pass would visit all that they import
APART = ("slow", "faults", "alone")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fail if `make slow`, which reads only the files that name such a mark, would miss a test."""
    files = {item.path for item in items if any(map(item.get_closest_marker, APART))}
    for file in sorted(files):
        if not any(f"mark.{mark}" in file.read_text() for mark in APART):
            raise pytest.UsageError(f"{file}: write pytest.mark.{'|'.join(APART)} in the file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    # hostile text without a UTF-8 form cannot go from a worker of xdist to its master
    report = yield
    report.sections = [(title, _sendable(text)) for title, text in report.sections]
    return report


def _sendable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def pytest_collection_finish() -> None:
    if "services.treestore.storage.database" in sys.modules:
        from tests.treestore import compiled

        compiled.share()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def nats_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[broker.Brokers]:
    yield from broker.running(tmp_path_factory.mktemp("nats"))


@pytest.fixture
def nats_server(nats_brokers: broker.Brokers) -> NatsServer:
    """A real nats-server, in an account without streams that no other test sees.

    The test may kill it and start it again.
    """
    return nats_brokers.lend()


async def wait_until(
    condition: Callable[[], bool | Awaitable[bool]], deadline_s: float = 10.0, what: str = ""
) -> None:
    """Waits until the condition holds; fails with what it waited for."""
    end = time.monotonic() + deadline_s
    while True:
        result = condition()
        if await result if isinstance(result, Awaitable) else result:
            return
        if time.monotonic() > end:
            raise AssertionError(f"{what or condition} did not hold within {deadline_s} s")
        await asyncio.sleep(0.01)


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    return wait_until
