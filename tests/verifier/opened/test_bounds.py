"""Opened environments end when they are not used, are bounded, and their ids cannot be guessed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
import pytest_asyncio

from banyan.errors import DeadlineMissed, InvalidInput, NotFound, Refused, TemporaryError
from banyan.v1 import verifier_service_pb2 as pb
from services.verifier.environments.opened import environments
from services.verifier.environments.opened.table import Bounds, OpenEnvironment, Table
from services.verifier.jail.chosen_sessions import ChosenSessions
from tests.verifier.opened.serving import Client, serving

BOUNDS = Bounds(number=3, state_bytes=20_000, idle_s=600.0)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def client(sessions: ChosenSessions, clock: Clock) -> AsyncIterator[Client]:
    async with serving(sessions=sessions, bounds=BOUNDS, clock=clock) as made:
        yield made


async def test_what_is_not_used_ends_and_says_so(client: Client, clock: Clock) -> None:
    used, idle = await client.open("calculator"), await client.open("calculator")
    clock.now += 400
    await client.step(used, "<calc>1</calc>")
    clock.now += 200
    with pytest.raises(NotFound, match="it had no call for 600 s; open another"):
        await client.step(idle, "<calc>1</calc>")
    with pytest.raises(NotFound, match="it had no call for 600 s"):
        await client.fork(idle)
    assert (await client.step(used, "<calc>1</calc>")).observation == "1"
    await client.close(used)
    with pytest.raises(NotFound, match="it was closed; open another"):
        await client.close(used)


def test_one_at_work_is_in_use(clock: Clock) -> None:
    table = Table(BOUNDS, clock)
    opened = OpenEnvironment(None, b"", 64, 1)
    key = table.add(opened)

    async def held() -> None:
        async with opened.line:
            clock.now += 10_000
            assert table.get(key) is opened

    asyncio.run(held())
    clock.now += 599
    assert table.get(key) is opened
    clock.now += 600
    with pytest.raises(NotFound):
        table.get(key)


async def test_a_call_waits_for_those_before_it_up_to_a_deadline(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "_LINE_S", 0.2)
    key = await client.open("calculator")
    fork = await client.fork(key)
    async with client.table.get(key).line:
        assert (await client.step(fork, "<calc>1</calc>")).observation == "1", "it has its own"
        for call in (client.step(key, "<calc>1</calc>"), client.fork(key)):
            with pytest.raises(DeadlineMissed, match=r"at work for earlier calls for 0\.2 s"):
                await call
    assert (await client.step(key, "<calc>1</calc>")).observation == "1"


async def test_calls_under_way_are_bounded(
    client: Client, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Awaitable[None]]
) -> None:
    """Each holds its request, and waits for a child or for the calls before it."""
    monkeypatch.setattr(environments, "_MOST_CALLS", 2)
    key, other = await client.open("calculator"), await client.open("calculator")
    line = client.table.get(key).line
    async with line:
        waiting = [asyncio.create_task(client.step(key, "<calc>1</calc>")) for _ in range(2)]
        await eventually(lambda: len(line._waiters or ()) == 2, 10.0, "two calls that wait")
        for call in (client.open("calculator"), client.step(other, "1"), client.fork(other)):
            with pytest.raises(TemporaryError, match="2 calls about opened environments") as full:
                await call
            assert full.value.reason == "TOO_MANY"
        await client.close(other)  # which makes room
    assert [(await one).observation for one in waiting] == ["1", "1"]
    assert (await client.step(key, "<calc>2</calc>")).observation == "2"


async def test_what_was_closed_is_not_forked_by_who_waited(
    client: Client, eventually: Callable[..., Awaitable[None]]
) -> None:
    key = await client.open("calculator")
    line = client.table.get(key).line
    async with line:
        forking = asyncio.create_task(client.fork(key))
        await eventually(lambda: bool(line._waiters), 10.0, "a call that waits")
        await client.close(key)
    with pytest.raises(NotFound, match="it was closed; open another"):
        await forking


async def test_no_more_are_open_than_there_is_room_for(client: Client, clock: Clock) -> None:
    keys = [await client.open("calculator") for _ in range(3)]
    for call in (client.open("calculator"), client.fork(keys[0])):
        with pytest.raises(TemporaryError, match=r"3 environments are open, .* close some") as full:
            await call
        assert full.value.reason == "TOO_MANY"
    await client.close(keys[0])
    assert (await client.step(await client.fork(keys[1]), "<calc>2</calc>")).observation == "2"
    clock.now += 600  # all have ended: there is room again
    assert await client.open("calculator")


async def test_states_are_bounded_in_sum(client: Client) -> None:
    key = await client.open("python")
    await client.step(key, "<python>x = 'a' * 11000</python>")
    with pytest.raises(TemporaryError, match=r"hold \d+ bytes") as full:
        await client.fork(key)
    assert full.value.reason == "TOO_MANY"
    with pytest.raises(TemporaryError, match=r"hold \d+ bytes"):
        await client.step(key, "<python>y = x + 'b'</python>")
    unchanged = "<python>try:\n    y\nexcept NameError:\n    print(len(x))</python>"
    assert (await client.step(key, unchanged)).observation == "11000"
    await client.step(key, "<python>x = 0</python>")
    assert await client.fork(key)


def test_states_that_ended_make_room(clock: Clock) -> None:
    table = Table(BOUNDS, clock)
    table.close(table.add(OpenEnvironment(None, bytes(20_000), 64, 1)))
    table.add(OpenEnvironment(None, bytes(20_000), 64, 1))
    clock.now += 600
    assert table.add(OpenEnvironment(None, bytes(20_000), 64, 1))


@pytest.mark.parametrize(
    "key", ["", "x", "\0" * 30, "ключ", "9" * 1_000_000, "../secret", "00000000-" + "A" * 21]
)
async def test_what_is_no_id_is_told_so(client: Client, key: str) -> None:
    for call in (client.step(key, "1"), client.fork(key), client.close(key)):
        with pytest.raises(NotFound, match="no id of an environment: take it from Open") as none:
            await call
        assert len(str(none.value)) < 200


async def test_ids_of_others_and_of_none_are_told_apart(client: Client) -> None:
    key = await client.open("calculator")
    with pytest.raises(NotFound, match="there is no environment"):
        await client.step(key[:-1] + ("A" if key[-1] != "A" else "B"), "1")
    with pytest.raises(NotFound, match="opened in another one, or before this one started"):
        await client.step("00000000" + key[8:], "1")
    with pytest.raises(NotFound, match="no id"):
        await client.step(key.upper() + " ", "1")


async def test_who_does_not_know_the_secret_is_refused(sessions: ChosenSessions) -> None:
    async with serving(sessions=sessions, secret="s") as client:
        key = await client.open("calculator")
        async with grpc.aio.insecure_channel(client.address) as channel:
            for method, request in (
                ("OpenEnvironment", pb.OpenEnvironmentRequest(environment="calculator")),
                ("Step", pb.StepRequest(environment_id=key, action="1")),
                ("Fork", pb.ForkRequest(environment_id=key)),
                ("CloseEnvironment", pb.CloseEnvironmentRequest(environment_id=key)),
            ):
                call = channel.unary_unary(f"/banyan.v1.VerifierService/{method}")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(request.SerializeToString(), timeout=10)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await client.step(key, "<calc>1</calc>")).observation == "1"


WRONG = {
    "nothing": ({}, "name either an environment or a run_id"),
    "both": ({"environment": "python", "run_id": "r"}, "name either an environment or a run_id"),
    "unknown": ({"environment": "shell"}, "'shell' cannot be opened by name; known: calculator"),
    "files": ({"environment": "sql"}, "run_id of a run whose recipe names it"),
    "class": ({"environment": "os:system"}, "run_id of a run whose recipe names it"),
    "tree": ({"environment": "python", "tree_id": b"t"}, "tree_id goes with run_id"),
    "row": ({"environment": "python", "row_json": "{"}, "row_json is no JSON"),
    "list": ({"environment": "python", "row_json": "[]"}, "row_json is list, not an object"),
    "nan": ({"environment": "python", "row_json": '{"a": NaN}'}, "row_json is no JSON"),
    "half": ({"environment": "python", "row_json": '{"a": "\\ud800"}'}, "row_json is no JSON"),
    "deep": ({"environment": "python", "row_json": "[" * 200_000}, "row_json is no JSON"),
    "long": ({"environment": "python", "row_json": " " * 262_145}, "has 262145 characters"),
    "setting": ({"environment": "python", "settings_json": '{"a": 1}'}, "has no setting 'a'"),
    "kind": ({"environment": "python", "settings_json": '{"end": 1}'}, "end must be a text"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_wrong_request_is_refused_by_name(client: Client, what: str) -> None:
    fields, message = WRONG[what]
    with pytest.raises(InvalidInput, match=message):
        await client.begun(**fields)


async def test_actions_are_counted_and_forks_have_had_those_of_their_trunk(
    client: Client,
) -> None:
    key = await client.open("calculator")
    client.table.get(key).turns = 2
    await client.step(key, "<calc>1</calc>")
    fork = await client.fork(key)
    for one in (key, fork):
        await client.step(one, "nothing")  # one that cannot be read is answered, too
        with pytest.raises(Refused, match=r"has had all its actions \(of a run: environment.turns"):
            await client.step(one, "<calc>1</calc>")


def test_a_state_counts_from_its_beginning_to_its_end(clock: Clock) -> None:
    table = Table(BOUNDS, clock)
    key = table.add(OpenEnvironment(None, bytes(15_000), 64, 1))
    with pytest.raises(TemporaryError, match="hold 15000 bytes"):
        table.add(OpenEnvironment(None, bytes(6_000), 64, 1))
    table.close(key)
    assert table.add(OpenEnvironment(None, bytes(20_000), 64, 1))
