"""Typed functions as tools, in the children that call them."""

import json
import math
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
from banyan.environments.tools import effect_of, tool
from banyan.errors import InvalidInput
from services.verifier.environments.hosts import Hosts
from services.verifier.preview import environment_trial
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from tests.verifier.hosted.test_hosts import step

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTING = Hosting(end="", seconds=5.0)
READERS = """
from pathlib import Path
from banyan.environments.tools import tool

@tool(effect="none")
def lately() -> str:
    import beside
    return beside.WORD

@tool(effect="none")
def rows() -> str:
    return Path(__file__).with_name("rows.jsonl").read_text()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[Hosts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        pool = Pool(Limits(deadline_s=5.0), width=1)
        yield Hosts(pool)
        await pool.close()


def built(*functions: str) -> Hosted:
    named = [f"shop:{one}" for one in functions]
    environment = registry.environment("tools", {"functions": named}, HOSTING)
    assert isinstance(environment, Hosted)
    return environment


def call(name: Any, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"I will. <tool_call>{body}</tool_call>"


CALLS = {
    call("price", item="tea"): "2.5",
    call("price", item="tea", pieces=2, money="cent"): "500.0",
    call("price", item="salt"): "error: KeyError: 'salt'",
    call("price"): "error: ValueError: price needs the argument 'item'",
    call("price", item=3): (
        'error: ValueError: argument \'item\' must be {"type": "string"}, got 3'
    ),
    call("price", item="tea", pieces=True): (
        'error: ValueError: argument \'pieces\' must be {"type": "integer"}, got true'
    ),
    call("price", item="tea", money="yen"): (
        'error: ValueError: argument \'money\' must be {"enum": ["euro", "cent"]}, got "yen"'
    ),
    call("price", thing="tea"): (
        "error: ValueError: price has no argument 'thing'; it has item, pieces, money"
    ),
    call(
        "steal", item="tea"
    ): "error: ValueError: there is no tool 'steal'; known: price, put, half",
    call(["x"]): "error: ValueError: there is no tool ['x']; known: price, put, half",
    call("price", item="tea", pieces=math.nan): "error: ValueError: argument 'pieces' must be",
    call("half", amount=math.nan): "error: ValueError: argument 'amount' must be",
    call("half", amount=1): "0.5",
    "<tool_call>{</tool_call>": "error: a call is no JSON: ",
    "<tool_call>[]</tool_call>": 'error: a call is an object with "name" and',
    "price(tea)</tool_call>": "error: no <tool_call>…</tool_call>",
}


@pytest.mark.parametrize("said", CALLS)
async def test_calls_are_checked_and_answered(hosts: Hosts, said: str) -> None:
    environment = built("price", "put", "half")
    start = environment.reset({}, 0)
    answer = await step(hosts, environment, start, said)
    assert answer.text.startswith(CALLS[said])
    unread = answer.text.startswith(("error: a call", "error: no"))
    assert (answer.outcome is ToolOutcome.MALFORMED) is unread
    assert answer.state == start and answer.effect is Effect.NONE


async def test_the_state_of_a_module_is_that_of_the_path(hosts: Hosts) -> None:
    environment = built("price", "put")
    one = await step(hosts, environment, environment.reset({}, 0), call("put", items=["tea"]))
    assert (one.text, one.effect) == ("tea", Effect.STATE)
    asked = await step(hosts, environment, one.state, call("price", item="rice"))
    assert (asked.text, asked.state) == ("1.0", one.state)
    for item in ("rice", "salt"):
        other = await step(hosts, environment, asked.state, call("put", items=[item]))
        assert other.text == f"tea, {item}", "branches do not see each other's basket"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("order", "changes something outside"),
        ("undeclared", "changes something outside, or does not say"),
        ("untyped", "parameter item needs a type"),
        ("missing", "no attribute 'missing'"),
        ("later", "tool later: an async function or a generator returns no answer"),
        ("one_by_one", "tool one_by_one: an async function or a generator"),
    ],
)
async def test_what_is_no_tool_is_refused(hosts: Hosts, function: str, message: str) -> None:
    environment = built(function)
    with pytest.raises(InvalidInput, match=message):
        await step(hosts, environment, environment.reset({}, 0), call(function))


async def test_two_tools_of_one_name_are_refused(hosts: Hosts) -> None:
    named = ["shop:price", "market:price"]
    environment = registry.environment("tools", {"functions": named}, HOSTING)
    with pytest.raises(InvalidInput, match="two tools 'price'"):
        await step(hosts, environment, environment.reset({}, 0), call("price", item="tea"))


async def test_tools_may_read_their_folder_and_not_the_rows(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "beside.py").write_text("WORD = 'beside'")
    (tmp_path / "rows.jsonl").write_text("answers")
    (tmp_path / "readers.py").write_text(READERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    hosting = replace(HOSTING, withheld=(str(tmp_path / "rows.jsonl"),))
    named = {"functions": ["readers:lately", "readers:rows"]}
    environment = registry.environment("tools", named, hosting)
    start = environment.reset({}, 0)
    assert (await step(hosts, environment, start, call("lately"))).text == "beside"
    assert "PermissionError" in (await step(hosts, environment, start, call("rows"))).text
    version = environment.version
    (tmp_path / "readers.py").write_text(READERS + "# changed")
    assert registry.environment("tools", named, hosting).version != version


async def test_a_tool_is_called_as_the_recipe_names_it() -> None:
    trial = await environment_trial.tried("tools", {"functions": ["shop:cost"]}, HOSTING, {})
    about = trial.about
    assert '"name": "cost"' in about and '"name": "price"' not in about


async def test_a_decorator_without_an_effect_is_external_and_has_brackets() -> None:
    assert effect_of(tool()(lambda item: item)) == "external"
    with pytest.raises(ValueError, match=r"above .*<lambda> lacks brackets: write @tool\(effect="):
        tool(lambda item: item)
    with pytest.raises(ValueError, match=r'"state" or "external"; got \'much\''):
        tool(effect="much")


async def test_a_trial_takes_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    hosting = Hosting(end="<go>", seconds=5.0)
    with pytest.raises(InvalidInput, match=r"must return .*, got 'only a text'"):
        await environment_trial.tried("corridors:Bad", {"where": "step"}, hosting, {})


async def test_tools_describe_themselves(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"functions": ["shop:price"]}
    trial = await environment_trial.tried("tools", settings, HOSTING, {})
    about = trial.about
    head, schema, last = about.splitlines()
    assert head == "You may call these tools:" and last.startswith("A call is <tool_call>")
    assert json.loads(schema)["function"] == {
        "name": "price",
        "description": "Price of an item.",
        "parameters": {
            "type": "object",
            "properties": {
                "item": {"type": "string"},
                "pieces": {"type": "integer"},
                "money": {"enum": ["euro", "cent"]},
            },
            "required": ["item"],
        },
    }
