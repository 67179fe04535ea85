"""/metrics over real HTTP: who may read, what is announced, and readers that misbehave."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from banyan.runtime import secret
from services.chassis.process.telemetry import scrape
from services.chassis.process.telemetry.scrape import Scrape

SECRET = "5" * 64


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    servers: list[Scrape] = []
    monkeypatch.delenv("BANYAN_SECRET_FILE", raising=False)

    def begin(listen: str = "127.0.0.1:0", target: str = "") -> str:
        servers.append(Scrape(lambda: None))
        return servers[-1].start(listen, target)

    yield begin
    for server in servers:
        server.stop()


def read(address: str, path: str = "/metrics", **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_only_who_knows_the_secret_reads(
    serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    monkeypatch.setenv("BANYAN_SECRET_FILE", str(tmp_path / "secret"))
    address = serve()
    assert read(address)[0] == 401
    assert read(address, Authorization=f"Bearer {SECRET[:-1]}")[0] == 401
    assert read(address, Authorization=f"Bearer {SECRET}")[0] == 200
    key = secret.read(secret.make_metrics_key(tmp_path))
    assert read(address, Authorization=f"Bearer {key}")[0] == 200 and key != SECRET
    assert read(address, Authorization=f"Bearer {secret.metrics_key(key)}")[0] == 401
    assert (tmp_path / secret.METRICS_FILE).stat().st_mode & 0o777 == 0o600


def test_without_a_secret_anybody_reads_metrics_and_nothing_else(
    serve: Callable[..., str],
) -> None:
    address = serve()
    assert read(address)[0] == read(address, "/metrics?x=1")[0] == 200
    assert read(address, "/")[0] == read(address, "/metrics/../etc/passwd")[0] == 404


def test_its_address_is_announced_as_prometheus_reads_it_and_withdrawn(
    serve: Callable[..., str], tmp_path: Path
) -> None:
    target = tmp_path / "verifier.json"
    address = serve(target=str(target))
    (entry,) = json.loads(target.read_text())
    assert entry == {"targets": [address], "labels": {"process": "verifier"}}
    assert read(address)[0] == 200


def test_stopping_withdraws_the_address(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    server = Scrape(lambda: None)
    address = server.start("127.0.0.1:0", str(target))
    server.stop()
    assert not target.exists()
    with pytest.raises(urllib.error.URLError):
        read(address)


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused(serve: Callable[..., str], listen: str) -> None:
    with pytest.raises(InvalidInput, match="must be host:port"):
        serve(listen)


def test_a_port_in_use_is_refused_with_the_remedy(serve: Callable[..., str]) -> None:
    with pytest.raises(InvalidInput, match="BANYAN_METRICS_LISTEN"):
        serve(serve())


def test_readers_that_never_ask_keep_nobody_else_for_long(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape._Handler, "timeout", 0.2)
    address = serve()
    host, port = address.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(scrape._MOST_AT_ONCE)]
    for connection in silent:  # each is closed once its time is over
        connection.settimeout(10)
        assert connection.recv(1) == b""
        connection.close()
    assert read(address)[0] == 200


def test_readers_that_send_a_byte_now_and_then_keep_nobody_else_for_long(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "_LONGEST_S", 0.5)
    address = serve()
    host, port = address.split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(scrape._MOST_AT_ONCE)]
    end = time.monotonic() + 10.0
    while slow and time.monotonic() < end:
        for connection in tuple(slow):
            try:
                connection.sendall(b"G")
            except OSError:
                slow.remove(connection)
                connection.close()
        time.sleep(0.05)
    assert slow == [] and read(address)[0] == 200


def test_one_reader_too_many_is_sent_away(serve: Callable[..., str]) -> None:
    address = serve()
    host, port = address.split(":")
    busy = [socket.create_connection((host, int(port))) for _ in range(scrape._MOST_AT_ONCE)]
    for connection in busy:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n")  # and never the rest
    with socket.create_connection((host, int(port))) as late:
        late.settimeout(10)
        try:
            assert late.recv(1) == b""
        except ConnectionResetError:
            pass
    for connection in busy:
        connection.close()
