"""Access to the page: hosts, origins, tokens, sessions, sizes, and what leaves in an error."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.chassis.rpc import rpc
from services.gateway.page.app import Page
from services.gateway.page.http import access
from services.gateway.page.http.access import Access, Guard
from services.gateway.page.http.sender import CSP
from services.gateway.page.reads import Reads
from tests.gateway.page.conftest import SECRET, client_of

BEARER = {"Authorization": f"Bearer {SECRET}"}
WRITES = (
    ("POST", "/api/runs/r/cancel"),
    ("POST", "/api/runs/r/resume"),
    ("DELETE", "/api/runs/r"),
    ("POST", "/api/dead/1/replay"),
    ("POST", "/api/session"),
)


@pytest.fixture
async def nowhere(tmp_path: Path) -> AsyncIterator[Page]:
    """A page whose store is away: no request here needs it."""
    channel = rpc.channel("127.0.0.1:9")
    yield Page(Reads(channel), Access(secret=SECRET), tmp_path)
    await channel.close(None)


@pytest.fixture
async def client(nowhere: Page) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(nowhere) as client:
        yield client


async def refused(
    client: httpx.AsyncClient, status: int, method: str, path: str, **more: Any
) -> str:
    answer = await client.request(method, path, **more)
    assert answer.status_code == status, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["reason"] and error["message"]
    return str(error["message"])


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7777", "127.0.0.1:7778", "127.0.0.1", "localhost.evil:7777", ""],
)
async def test_another_hosts_name_is_misdirected(client: httpx.AsyncClient, host: str) -> None:
    for path in ("/", "/api/runs", "/assets/index.html"):
        message = await refused(client, 421, "GET", path, headers={"Host": host})
        assert "127.0.0.1:7777" in message


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7777", "localhost:7777", "LOCALHOST:7777", "[::1]:7777"]
)
async def test_loopback_has_three_names(client: httpx.AsyncClient, host: str) -> None:
    assert (await client.get("/", headers={"Host": host})).status_code == 200


async def test_further_names_are_those_that_were_set(nowhere: Page, tmp_path: Path) -> None:
    page = Page(
        Reads(rpc.channel("127.0.0.1:9")),
        Access(secret=SECRET, hosts=["runs.example:80"]),
        tmp_path,
    )
    async with client_of(page) as client:
        assert (await client.get("/", headers={"Host": "runs.example:80"})).status_code == 200
        await refused(client, 421, "GET", "/", headers={"Host": "other.example:80"})


NAMES = {f"{name}:7777" for name in ("127.0.0.1", "localhost", "[::1]")}


@given(st.lists(st.binary(max_size=40), max_size=3), st.sampled_from(["/", "/api/runs", "/x"]))
@example([b"127.0.0.1:7777"], "/")
@example([b"LOCALHOST:7777"], "/")
@example([b"127.0.0.1:7777\x00"], "/api/runs")
@example([b"localhost:7777", b"localhost:7777"], "/")
def test_any_other_host_reaches_nothing(hosts: list[bytes], path: str) -> None:
    reached: list[str] = []
    statuses: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "server": ("127.0.0.1", 7777),
        "headers": [(b"host", host) for host in hosts],
    }
    asyncio.run(Guard(app, Access(secret=SECRET))(scope, _nothing, send))
    right = len(hosts) == 1 and hosts[0].decode("latin-1").lower() in NAMES
    assert (reached, statuses) == (([path], []) if right else ([], [421]))


async def _nothing() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


async def test_two_hosts_are_none(client: httpx.AsyncClient) -> None:
    request = client.build_request("GET", "/")
    request.headers = httpx.Headers([("Host", "127.0.0.1:7777"), ("Host", "127.0.0.1:7777")])
    assert (await client.send(request)).status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:7778"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/api/runs"), *WRITES])
async def test_another_origin_is_refused_even_with_the_token(
    client: httpx.AsyncClient, origin: str, method: str, path: str
) -> None:
    await refused(client, 403, method, path, headers={**BEARER, "Origin": origin})
    for site in ("cross-site", "same-site"):  # another port of this host is the same site
        headers = {**BEARER, "Sec-Fetch-Site": site}
        await refused(client, 403, method, path, headers=headers)


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {SECRET[:-1]}"},
        {"Authorization": f"Bearer {SECRET}x"},
        {"Authorization": SECRET},
        {"Authorization": f"Basic {SECRET}"},
        {"Authorization": "Bearer é"},
    ],
)
async def test_changes_need_the_token_on_loopback_too(
    client: httpx.AsyncClient, method: str, path: str, given: dict[str, str]
) -> None:
    raw = {name: value.encode("latin-1") for name, value in given.items()}
    assert "file `secret`" in await refused(client, 401, method, path, headers=raw)


async def test_without_a_secret_no_token_is_right(tmp_path: Path) -> None:
    page = Page(Reads(rpc.channel("127.0.0.1:9")), Access(secret=""), tmp_path)
    async with client_of(page) as client:
        for header in ("Bearer ", "Bearer"):
            await refused(client, 401, "POST", "/api/session", headers={"Authorization": header})
    assert not Access(secret="").knows_session(Access(secret="").session(0.0), 0.0)


FAR = "http://10.1.2.3:7777"


async def test_reading_on_another_address_needs_token_or_session(nowhere: Page) -> None:
    async with client_of(nowhere, FAR) as client:
        await refused(client, 401, "GET", "/api/dead")
        assert (await client.get("/")).status_code == 200  # it asks for the token
        assert (await client.get("/api/openapi.json")).status_code == 200
        await refused(client, 503, "GET", "/api/dead", headers=BEARER)  # let in; the store is away
        session = await client.post("/api/session", headers=BEARER)
        cookie = session.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and "path=/api" in cookie
        assert SECRET not in session.text + session.headers["set-cookie"]
        await refused(client, 503, "GET", "/api/dead")  # by the cookie
        await refused(client, 401, "POST", "/api/runs/r/cancel")  # good for reading only


async def test_reading_on_loopback_may_need_the_token_too(tmp_path: Path) -> None:
    rules = Access(secret=SECRET, loopback_free=False)
    page = Page(Reads(rpc.channel("127.0.0.1:9")), rules, tmp_path)
    async with client_of(page) as client:
        await refused(client, 401, "GET", "/api/runs")
        await refused(client, 401, "GET", "/api/runs/r/events")
        assert (await client.get("/")).status_code == 200  # it asks for the token
        await refused(client, 503, "GET", "/api/runs", headers=BEARER)
        await client.post("/api/session", headers=BEARER)
        await refused(client, 503, "GET", "/api/runs")  # by the cookie


async def test_loopback_by_its_address_of_the_other_family_is_loopback(nowhere: Page) -> None:
    async with client_of(nowhere, "http://[::ffff:127.0.0.1]:7777") as client:
        await refused(client, 503, "GET", "/api/dead", headers={"Host": "localhost:7777"})
    async with client_of(nowhere, "http://[::ffff:10.1.2.3]:7777") as client:
        await refused(client, 421, "GET", "/api/dead", headers={"Host": "localhost:7777"})


def test_the_scheme_of_a_token_has_any_case() -> None:
    rules = Access(secret=SECRET)
    assert rules.knows_token(f"bearer {SECRET}") and rules.knows_token(f"BEARER  {SECRET} ")


async def test_a_session_ends_and_cannot_be_made() -> None:
    rules, now = Access(secret=SECRET), time.time()
    session = rules.session(now)
    assert rules.knows_session(session, now)
    assert not rules.knows_session(session, now + access.SESSION_S + 1)
    until, _, code = session.partition(".")
    for other in (f"{int(until) + 1}.{code}", f"{until}.", until, "", f"x.{code}", f"²{session}"):
        assert not rules.knows_session(other, now)
    assert not Access(secret="6" * 64).knows_session(session, now)


async def test_every_answer_has_the_headers(client: httpx.AsyncClient) -> None:
    for path in ("/", "/api/openapi.json", "/api/runs?limit=0", "/assets/none.js", "/x.y"):
        answer = await client.get(path)
        assert answer.headers.get_list("content-security-policy") == [CSP]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        for name in ("cross-origin-resource-policy", "cross-origin-opener-policy"):
            assert answer.headers[name] == "same-origin"
    assert "unsafe" not in CSP and "script-src 'self'" in CSP


async def test_no_cache_keeps_an_answer_or_a_session(client: httpx.AsyncClient) -> None:
    for method, path in (("POST", "/api/session"), ("GET", "/api/runs?limit=0"), ("GET", "/x.y")):
        answer = await client.request(method, path, headers=BEARER)
        assert answer.headers["cache-control"] == "no-store", path


async def test_large_requests_are_refused(client: httpx.AsyncClient) -> None:
    await refused(client, 414, "GET", f"/api/runs?after={'a' * 3000}")
    most = "a" * (access.MOST_QUERY - len("after="))
    await refused(client, 400, "GET", f"/api/runs?after={most}")  # read, and no cursor
    whole = b" " * access.MOST_BODY
    await refused(client, 409, "POST", "/api/runs/r/cancel", content=whole, headers=BEARER)
    body = b"x" * (access.MOST_BODY + 1)
    await refused(client, 413, "POST", "/api/runs/r/cancel", content=body, headers=BEARER)


async def test_a_body_without_a_length_is_counted(here: Any) -> None:
    """The store is asked before the body is read, so the run must be there."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(access.MOST_BODY):
            yield b" " * 2

    page = Page(
        Reads(here.store.channel),
        Access(secret=SECRET),
        Path(),
        control=object(),  # type: ignore[arg-type]
    )
    async with client_of(page) as client:
        path = f"/api/runs/{here.store.forge.run_id}/cancel"
        await refused(client, 413, "POST", path, content=pieces(), headers=BEARER)


async def test_other_methods_and_paths_are_errors_in_json(client: httpx.AsyncClient) -> None:
    assert "POST /api/runs" in await refused(client, 405, "POST", "/api/runs", headers=BEARER)
    assert "DELETE" in await refused(client, 405, "DELETE", "/api/system", headers=BEARER)
    await refused(client, 405, "GET", "/api/session")  # a place of the API is none of the page
    await refused(client, 404, "GET", "/api/none")
    await refused(client, 404, "GET", "/api/runs/")
    await refused(client, 404, "GET", "/api")
    await refused(client, 404, "GET", "/favicon.ico")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/api/runs/r", {"GET", "HEAD", "DELETE"}),
        ("/api/runs", {"GET", "HEAD"}),
        ("/api/session", {"POST"}),
    ],
)
async def test_a_wrong_method_is_told_all_right_ones(
    client: httpx.AsyncClient, path: str, methods: set[str]
) -> None:
    for method in ("PUT", "OPTIONS", "PATCH"):
        answer = await client.request(method, path, headers=BEARER)
        assert answer.status_code == 405, answer.text
        assert set(answer.headers["allow"].split(", ")) == methods


async def test_what_fails_inside_stays_inside(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(Reads, "dead", fail)
    answer = await client.get("/api/dead")
    assert answer.status_code == 500 and "hunter2" not in answer.text
    assert answer.json()["error"]["reason"] == "INTERNAL" and "Traceback" not in answer.text
    assert "hunter2" in caplog.text  # in the log alone


async def test_a_store_that_is_away_is_said(client: httpx.AsyncClient) -> None:
    began = time.monotonic()
    await refused(client, 503, "GET", "/api/runs")
    assert time.monotonic() - began < 8.0


async def test_changes_where_nothing_runs_say_so(here: Any) -> None:
    run = here.store.forge.run_id
    for method, path in WRITES[:4]:
        place = path.replace("/r/", f"/{run}/").replace("runs/r", f"runs/{run}")
        message = await refused(here.client, 409, method, place, headers=BEARER)
        assert "nothing runs" in message


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/%00",
        "/api/runs/%ff%fe",
        "/api/runs/..%2f..%2fetc%2fpasswd",
        "/api/runs/' OR 1=1 --",
        "/api/runs/%25",
        "/api/runs/<script>alert(1)</script>",
        "/api/runs/\u202e",
        f"/api/runs/{'x' * 201}",
        "/api/trees/zz",
        "/api/trees/%0a",
        "/api/trees/" + "ab" * 40,
        "/api/trees/" + "ab" * 32 + "/segments/../..",
        "/api/trees/" + "ab" * 32,
    ],
)
async def test_hostile_ids_are_data(here: Any, path: str) -> None:
    answer = await here.client.get(path)
    assert answer.status_code in (400, 404), answer.text
    assert "Traceback" not in answer.text and "sqlite" not in answer.text.lower()
    assert answer.headers["content-type"] == "application/json"
