"""External tools in real children: called once, with a key, where the recipe names them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan import registry
from banyan.environments.hosted import Hosted
from banyan.environments.hosting import HostedResult, HostedTask, Hosting, Intent
from banyan.environments.observation import Effect, ToolOutcome
from banyan.errors import InvalidInput, Refused, TemporaryError
from banyan.plugins.environment import Answer
from services.verifier.environments.hosts import Hosts
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from tests.verifier.hosted.test_tools import call

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTING = Hosting(end="", seconds=2.0, network=True)
KEY = "k" * 64
TOOLS = ("send", "post", "note", "secret")


@dataclass
class Outside:
    """A server that notes each line that it gets, and says "sent"."""

    port: int
    lines: list[str]


@contextlib.asynccontextmanager
async def outside() -> AsyncIterator[Outside]:
    lines: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append((await reader.readline()).decode().strip())
        writer.write(b"sent\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        yield Outside(server.sockets[0].getsockname()[1], lines)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[Hosts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        patch.setenv("BANYAN_TEST_WORD", "given")
        pool = Pool(Limits(deadline_s=5.0, network=True, secrets=("BANYAN_TEST_WORD",)), width=1)
        yield Hosts(pool)
        await pool.close()


def built(*names: str, hosting: Hosting = HOSTING, external: tuple[str, ...] = ()) -> Hosted:
    named = [f"mail:{one}" for one in names]
    hosting = replace(hosting, external=external)
    environment = registry.environment("tools", {"functions": named}, hosting)
    assert isinstance(environment, Hosted)
    return environment


async def step(hosts: Hosts, environment: Hosted, state: bytes, action: str) -> Answer:
    """Do a step; give the key that it asks for."""

    async def begin() -> str:
        return KEY

    turn, given = environment.turn(state, action), None
    try:
        while True:
            task: HostedTask | Intent = turn.send(given)
            outside = isinstance(task, Intent)
            given: Any = await (hosts.do(task.task, begin) if outside else hosts.do(task))
    except StopIteration as end:
        answer: Answer = end.value
        return answer


async def test_a_named_tool_is_called_with_its_key(hosts: Hosts) -> None:
    environment = built(*TOOLS, external=("send", "post"))
    start = environment.reset({}, 0)
    async with outside() as there:
        answer = await step(hosts, environment, start, call("send", port=there.port))
        assert (answer.text, answer.outcome) == ("sent", ToolOutcome.OK)
        assert there.lines == [KEY]
        answer = await step(hosts, environment, start, call("post", port=there.port))
        assert there.lines == [KEY, "post"] and answer.text == "sent"
    assert answer.effect is Effect.EXTERNAL and answer.state == start


async def test_without_a_key_nothing_is_called(hosts: Hosts) -> None:
    environment = built("send", external=("send",))
    async with outside() as there:
        turn = environment.turn(environment.reset({}, 0), call("send", port=there.port))
        task = next(turn)
        assert isinstance(task, HostedTask)
        result = await hosts.do(task)
        assert result == HostedResult(ToolOutcome.OK, external="send")
        assert turn.send(result) == Intent("send", task) and not there.lines


async def test_what_cannot_begin_is_not_called_and_its_child_stays(hosts: Hosts) -> None:
    async def begin() -> str:
        raise Refused("an older claim")

    environment = built("send", external=("send",))
    start = environment.reset({}, 0)
    async with outside() as there:
        task = next(environment.turn(start, call("send", port=there.port)))
        assert isinstance(task, HostedTask)
        for _ in range(3):  # more than there are children
            with pytest.raises(Refused, match="an older claim"):
                await hosts.do(task, begin)
        assert not there.lines
        answer = await step(hosts, environment, start, call("send", port=there.port))
        assert answer.text == "sent" and there.lines == [KEY]


async def test_a_wrong_call_asks_for_no_key(hosts: Hosts) -> None:
    environment = built("send", external=("send",))
    start = environment.reset({}, 0)
    for arguments in ({}, {"port": "1"}, {"port": 1, "idempotency_key": "mine"}):
        task = next(environment.turn(start, call("send", **arguments)))
        assert isinstance(task, HostedTask)
        result = await hosts.do(task)
        assert result.outcome is ToolOutcome.FAILED and not result.external


async def test_a_tool_that_the_recipe_does_not_name_is_not_called(hosts: Hosts) -> None:
    """Neither by the child, nor by what the child says."""
    environment = built("send")
    with pytest.raises(InvalidInput, match=r"name it in environment\.external: \[send\]"):
        await step(hosts, environment, environment.reset({}, 0), call("send", port=1))
    turn = environment.turn(environment.reset({}, 0), call("send", port=1))
    next(turn)
    with pytest.raises(InvalidInput, match="tool send changes something outside, and"):
        turn.send(HostedResult(ToolOutcome.OK, external="send"))


async def test_a_name_that_is_no_external_tool_is_refused(hosts: Hosts) -> None:
    environment = built("send", "note", external=("send", "note"))
    with pytest.raises(InvalidInput, match="names 'note', which is no external tool here"):
        await step(hosts, environment, environment.reset({}, 0), call("note", word="x"))


@pytest.mark.parametrize(
    ("then", "outcome"),
    [
        ("raise", ToolOutcome.FAILED),
        ("die", ToolOutcome.CRASHED),
        ("spin", ToolOutcome.CPU),
        ("sleep", None),
    ],
)
async def test_a_call_that_ends_badly_is_made_once(
    hosts: Hosts, then: str, outcome: ToolOutcome | None
) -> None:
    """None: nobody knows what became of it."""
    environment = built("send", external=("send",))
    async with outside() as there:
        said = call("send", port=there.port, then=then)
        start = environment.reset({}, 0)
        if outcome is None:
            with pytest.raises(TemporaryError):
                await step(hosts, environment, start, said)
        else:
            answer = await step(hosts, environment, start, said)
            assert (answer.outcome, answer.effect) == (outcome, Effect.EXTERNAL)
            assert answer.state == start
        assert there.lines == [KEY]


async def test_the_state_of_a_path_goes_on_as_if_nothing_was_called(hosts: Hosts) -> None:
    environment = built(*TOOLS, external=("send", "post"))
    one = await step(hosts, environment, environment.reset({}, 0), call("note", word="a"))
    async with outside() as there:
        two = await step(hosts, environment, one.state, call("send", port=there.port))
        assert two.state == one.state
        three = await step(hosts, environment, two.state, call("note", word="b"))
        assert three.text == "a,b" and there.lines == [KEY], "it is not repeated"


async def test_tools_reach_what_the_recipe_names_alone(hosts: Hosts) -> None:
    name = "BANYAN_TEST_WORD"
    asked = call("secret", variable=name)
    for secrets, text in (((), "none"), ((name,), "given")):
        reading = built("secret", hosting=replace(HOSTING, network=False, secrets=secrets))
        assert (await step(hosts, reading, reading.reset({}, 0), asked)).text == text
    for network, outcome in ((True, ToolOutcome.OK), (False, ToolOutcome.FAILED)):
        named = built("hosts", hosting=replace(HOSTING, network=network))
        answer = await step(hosts, named, named.reset({}, 0), call("hosts"))
        assert answer.outcome is outcome, "names of hosts are for who may use the network"
    alone = built("send", hosting=replace(HOSTING, network=False), external=("send",))
    async with outside() as there:
        said = call("send", port=there.port)
        answer = await step(hosts, alone, alone.reset({}, 0), said)
        assert answer.outcome is ToolOutcome.FAILED and not there.lines


async def test_what_the_operator_does_not_allow_is_refused(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    pool = Pool(Limits(deadline_s=5.0), width=1)
    try:
        for hosting, message in (
            (HOSTING, "environment 'tools' asks for the network, which this verifier allows to"),
            (
                replace(HOSTING, network=False, secrets=("BANYAN_TEST_WORD",)),
                "environment 'tools' names the secret BANYAN_TEST_WORD, which this verifier",
            ),
        ):
            environment = built("note", hosting=hosting)
            with pytest.raises(InvalidInput, match=message):
                await step(
                    Hosts(pool), environment, environment.reset({}, 0), call("note", word="x")
                )
    finally:
        await pool.close()
