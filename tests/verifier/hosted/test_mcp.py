"""Tools of MCP servers, in real processes: allowed, frozen, checked, and confined."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan import registry
from banyan.environments.hosted import Hosted
from banyan.environments.hosting import Hosting
from banyan.environments.observation import Effect, ToolOutcome
from banyan.errors import InvalidInput, Refused, TemporaryError
from services.verifier.environments.hosts import Hosts
from services.verifier.preview import environment_trial
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from tests.verifier.hosted.test_external import KEY, step
from tests.verifier.hosted.test_tools import call

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTING = Hosting(end="", seconds=5.0)
FILE = Path(__file__).with_name("mcp_server.py")
ALLOWED = {"price": "none", "put": "state", "order": "external"}
SCHEMAS = "d4412922e6818a42d917f4b7a1e736fa"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[Hosts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANYAN_TEST_WORD", "given")
        pool = Pool(Limits(deadline_s=5.0, secrets=("BANYAN_TEST_WORD",)), width=1)
        yield Hosts(pool)
        await pool.close()


def settings(how: str = "", tools: Any = None, schemas: str = SCHEMAS, **more: Any) -> Any:
    server = {"command": [sys.executable, str(FILE), how], "tools": tools or ALLOWED, **more}
    return {"servers": [{**server, "schemas": schemas}]}


def built(how: str = "", hosting: Hosting = HOSTING, **more: Any) -> Hosted:
    given = settings(how, **more)
    tools = given["servers"][0]["tools"]
    effects = tools if isinstance(tools, dict) else dict.fromkeys(tools, "external")
    external = tuple(name for name, effect in effects.items() if effect == "external")
    environment = registry.environment("tools", given, replace(hosting, external=external))
    assert isinstance(environment, Hosted)
    return environment


async def answer(hosts: Hosts, environment: Hosted, said: str, state: bytes = b"") -> Any:
    return await step(hosts, environment, state or environment.reset({}, 0), said)


CALLS = {
    call("price", item="tea", pieces=2): "5.0",
    call("price"): "error: ValueError: price: arguments at $: 'item' is a required property",
    call("price", item=3): "error: ValueError: price: arguments at $.item: 3 is not of type",
    call("price", item="tea", money="yen"): "error: ValueError: price: arguments at $: Additional",
    call("read", path="x"): "error: ValueError: there is no tool 'read'; known: price, put, order",
    "<tool_call>{</tool_call>": "error: a call is no JSON",
    '<tool_call>{"name": "price", "arguments": 3}</tool_call>': (
        "error: ValueError: arguments must be an object, got 3"
    ),
}


@pytest.mark.parametrize("said", CALLS)
async def test_calls_are_checked_and_answered(hosts: Hosts, said: str) -> None:
    environment = built()
    found = await answer(hosts, environment, said)
    assert found.text.startswith(CALLS[said])
    assert found.effect is Effect.NONE and found.state == environment.reset({}, 0)


async def test_a_tool_with_state_forks_with_its_path(hosts: Hosts) -> None:
    environment = built()
    one = await answer(hosts, environment, call("put", item="tea"))
    assert (one.text, one.effect) == ("tea", Effect.STATE)
    for item in ("rice", "salt"):
        other = await answer(hosts, environment, call("put", item=item), one.state)
        assert other.text == f"tea, {item}", "branches do not see each other's basket"


async def test_an_external_tool_gets_its_key_whatever_the_server_says_of_itself(
    hosts: Hosts,
) -> None:
    """The server calls it read-only."""
    environment = built(tools=["price", "put", "order"])
    found = await answer(hosts, environment, call("order"))
    assert (found.text, found.effect) == (f"ordered with {KEY}", Effect.EXTERNAL)
    assert found.state == environment.reset({}, 0)
    unnamed = replace(HOSTING, external=())
    alone = registry.environment("tools", settings(), unnamed)
    with pytest.raises(InvalidInput, match=r"tool order of servers\.0 changes something outside"):
        await answer(hosts, alone, call("order"))


async def test_a_server_whose_schemas_changed_diverges(hosts: Hosts) -> None:
    environment = built("changes")
    with pytest.raises(Refused, match=r"servers\.0\.schemas is .*digest .*write schemas") as raised:
        await answer(hosts, environment, call("price", item="tea"))
    assert raised.value.reason == "ENVIRONMENT_DIVERGED"
    fewer = built("changes", tools={"put": "state"}, schemas=await digest(hosts, {"put": "state"}))
    assert (await answer(hosts, fewer, call("put", item="tea"))).text == "tea", (
        "other tools may change"
    )


async def digest(hosts: Hosts, tools: Any) -> str:
    """Return the digest that a refusal names, as a user finds it."""
    with pytest.raises(Refused, match="schemas is none, and") as raised:
        await answer(hosts, built(tools=tools, schemas=""), call(next(iter(tools))))
    return str(raised.value).rpartition("schemas: ")[2]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("floods", "the server failed: it wrote more than 4 MiB in one step"),
        ("chatters", "the server failed: it wrote b'starting up', which is no JSON"),
        ("has wrong ids", "the server failed: it ended with status 0$"),
        ("cannot begin", "it ended with status 1, and wrote at last: .*Error: no shop here$"),
        ("lists null", "the server failed: its tools are None, no list"),
        ("lists no names", "the server has no tool 'order'; it has none"),
        ("pages without end", "the server failed: its list of tools has more than 100 pages"),
    ],
)
async def test_a_server_that_does_not_begin_is_no_fault_of_the_action(
    hosts: Hosts, how: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        await answer(hosts, built(how), call("price", item="tea"))


@pytest.mark.parametrize("how", ["hangs", "hangs in a call"])
async def test_a_server_that_hangs_is_lost(hosts: Hosts, how: str) -> None:
    environment = built(how, replace(HOSTING, seconds=1.5))
    with pytest.raises(TemporaryError, match=r"no answer in 1\.5 s"):
        await answer(hosts, environment, call("price", item="tea"))


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (
            "dies in a call",
            "error: ToolError: the server of tool price failed in the call: it ended",
        ),
        ("refuses a call", "error: ToolError: no such item"),
        ("floods in a call", "error: ToolError: the server of tool price failed in the call: it w"),
    ],
)
async def test_a_server_that_breaks_in_a_call_is_answered(
    hosts: Hosts, how: str, text: str
) -> None:
    found = await answer(hosts, built(how), call("price", item="tea"))
    assert found.text.startswith(text) and found.outcome is ToolOutcome.FAILED
    assert (await answer(hosts, built(), call("price", item="tea"))).text == "2.5"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("says it twice", "2.5"),
        ("says nothing", ""),
        ("asks back", "2.5"),
        ("pages", "2.5"),
        ("draws", "2.5\n[image]"),
    ],
)
async def test_odd_servers_are_understood(hosts: Hosts, how: str, text: str) -> None:
    assert (await answer(hosts, built(how), call("price", item="tea"))).text == text


async def test_what_a_server_writes_to_its_standard_error_is_no_part_of_an_answer(
    hosts: Hosts,
) -> None:
    found = await answer(hosts, built("dies in a call"), call("price", item="tea"))
    assert found.text.endswith("failed in the call: it ended")
    text = (await answer(hosts, built("complains"), call("price", item="tea"))).text
    assert text == "2.5", "a pipe that nobody reads would hold the server"


async def test_no_server_is_believed_to_be_deterministic(hosts: Hosts) -> None:
    environment = built(hosting=replace(HOSTING, deterministic=True))
    with pytest.raises(InvalidInput, match="tool price does not say that it is deterministic"):
        await answer(hosts, environment, call("price", item="tea"))


async def test_a_tool_that_the_server_lacks_is_named(hosts: Hosts) -> None:
    environment = built(tools={"steal": "none"})
    with pytest.raises(InvalidInput, match="has no tool 'steal'; it has order, price, put"):
        await answer(hosts, environment, call("steal"))


async def test_a_program_that_is_not_there_is_named(hosts: Hosts) -> None:
    given = settings()
    given["servers"][0]["command"] = ["/nowhere/server"]
    environment = registry.environment("tools", given, replace(HOSTING, external=("order",)))
    with pytest.raises(InvalidInput, match=r"cannot be started: .*nowhere"):
        await answer(hosts, environment, call("price", item="tea"))


async def test_a_server_is_confined_and_gets_the_named_secrets_alone(
    hosts: Hosts, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "rows.jsonl").write_text("answers")
    tools = {"read": "none", "variable": "none"}
    schemas = await digest(hosts, tools)
    reading = call("read", path=str(tmp_path / "rows.jsonl"))
    found = await answer(hosts, built(tools=tools, schemas=schemas), reading)
    assert "Permission denied" in found.text and found.outcome is ToolOutcome.FAILED
    files = [str(tmp_path)]
    found = await answer(hosts, built(tools=tools, schemas=schemas, files=files), reading)
    assert found.text == "answers"
    body = {"name": "variable", "arguments": {"name": "BANYAN_TEST_WORD"}}
    asked = f"<tool_call>{json.dumps(body)}</tool_call>"
    for secrets, text in (((), "none"), (("BANYAN_TEST_WORD",), "given")):
        hosting = replace(HOSTING, secrets=secrets)
        environment = built(hosting=hosting, tools=tools, schemas=schemas)
        assert (await answer(hosts, environment, asked)).text == text


async def test_nothing_of_a_server_is_left(hosts: Hosts) -> None:
    mine = f"as usual {os.getpid()}"  # other tests may run servers meanwhile
    assert (await answer(hosts, built(mine), call("price", item="tea"))).text == "2.5"
    ps = await asyncio.create_subprocess_exec("ps", "-eo", "args", stdout=asyncio.subprocess.PIPE)
    listed = (await ps.communicate())[0].decode()
    assert "ps -eo args" in listed and mine not in listed


async def test_servers_describe_their_tools() -> None:
    hosting = replace(HOSTING, external=("order",))
    trial = await environment_trial.tried("tools", settings(), hosting, {})
    about = trial.about
    _, price, put, order, last = about.splitlines()
    described = json.loads(price)["function"]
    assert described["name"] == "price" and described["description"] == "Price of an item."
    assert described["parameters"]["required"] == ["item"] and '"put"' in put and '"order"' in order
    assert last.startswith("A call is <tool_call>")
    with pytest.raises(InvalidInput, match=r"^environment tools: servers\.0\.schemas is"):
        await environment_trial.tried("tools", settings("changes"), hosting, {})


WRONG: dict[str, Any] = {
    "needs either a command or a url": {"tools": ["a"]},
    "servers.0 must be a mapping with command or url, got 'python'": "python",
    "servers.0 has no key 'more'; it has command, files": {
        "command": ["a"],
        "tools": ["a"],
        "more": 1,
    },
    "servers.0.command must be a list": {"command": "a", "tools": ["a"]},
    "servers.0.url must be https": {"url": "ftp://x", "tools": ["a"]},
    "servers.0.tools names the tools": {"command": ["a"], "tools": []},
    "servers.0.tools.a must be none, state or ext": {"command": ["a"], "tools": {"a": "read"}},
}


@pytest.mark.parametrize("message", WRONG)
async def test_a_server_of_the_wrong_form_is_refused(message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        registry.environment("tools", {"servers": [WRONG[message]]}, HOSTING)


async def test_there_are_tools() -> None:
    with pytest.raises(InvalidInput, match="name functions, servers, or both"):
        registry.environment("tools", {}, HOSTING)
