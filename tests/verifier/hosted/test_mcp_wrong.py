"""Servers that break the protocol's form, and whose fault it is."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan import registry
from banyan.environments.hosting import Hosting
from banyan.environments.observation import ToolOutcome
from banyan.errors import InvalidInput, Refused
from services.verifier.environments.hosts import Hosts
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from tests.verifier.hosted.test_external import step
from tests.verifier.hosted.test_tools import call

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTING = Hosting(end="", seconds=5.0)
FILE = Path(__file__).with_name("mcp_says.py")
SAID = call("price", item="tea")
FINE = '{"content": [{"type": "text", "text": "2.5"}]}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[Hosts]:
    pool = Pool(Limits(deadline_s=5.0), width=1)
    yield Hosts(pool)
    await pool.close()


def built(listed: str, called: str, schemas: str = "", **more: Any) -> Any:
    command = [sys.executable, str(FILE), listed, called]
    server = {"command": command, "tools": {"price": "none"}, "schemas": schemas, **more}
    return registry.environment("tools", {"servers": [server]}, HOSTING)


async def answered(hosts: Hosts, listed: str, called: str = FINE) -> Any:
    """Return the answer to a call, once the digest of the schemas is known."""
    environment = built(listed, called)
    with pytest.raises(Refused, match="schemas is none") as raised:
        await step(hosts, environment, environment.reset({}, 0), SAID)
    environment = built(listed, called, str(raised.value).rpartition("schemas: ")[2])
    return await step(hosts, environment, environment.reset({}, 0), SAID)


def price(more: str = '"inputSchema": {"type": "object"}') -> str:
    return f'{{"tools": [{{"name": "price", {more}}}]}}'


LISTS = {
    '{"tools": null}': "its tools are None, no list",
    '{"tools": {"price": 1}}': "no list",
    "{}": "its tools are None, no list",
    '{"tools": [{"name": ["price"]}, {"name": 3}, {}, 4]}': "has no tool 'price'; it has none",
    price('"description": "\\ud800"'): "describes tool price wrongly: .* surrogates not allowed",
    price('"inputSchema": {"type": 5}'): "describes tool price wrongly: the schema is none",
    price('"inputSchema": {"maximum": NaN}'): "describes tool price wrongly",
}


@pytest.mark.parametrize("listed", LISTS)
async def test_a_list_of_tools_that_is_none_is_no_fault_of_the_action(
    hosts: Hosts, listed: str
) -> None:
    """An answer in place of an ending would be scored as if the model had called wrongly."""
    environment = built(listed, FINE)
    with pytest.raises(InvalidInput, match=LISTS[listed]):
        await step(hosts, environment, environment.reset({}, 0), SAID)


async def test_others_in_the_list_do_not_matter(hosts: Hosts) -> None:
    listed = '{"tools": [7, {"name": []}, {"name": "price"}]}'
    assert (await answered(hosts, listed)).text == "2.5"


CONTENTS = {
    "null": "answered None, no content",
    '{"content": 5}': "no content",
}


@pytest.mark.parametrize("called", CONTENTS)
async def test_an_answer_without_content_is_a_failed_call(hosts: Hosts, called: str) -> None:
    found = await answered(hosts, price(), called)
    assert found.outcome is ToolOutcome.FAILED and CONTENTS[called] in found.text


async def test_arguments_that_cannot_be_checked_are_the_actions_fault(hosts: Hosts) -> None:
    """Whether the schema's bad part is met is the action's choice; it must not end its path."""
    schema = '{"properties": {"item": {"$ref": "http://127.0.0.1:9/nowhere"}}}'
    found = await answered(hosts, price(f'"inputSchema": {schema}'))
    assert found.outcome is ToolOutcome.FAILED
    assert found.text.startswith("error: ValueError: price: arguments cannot be checked: Unres")


@pytest.mark.parametrize("word", ["\0", "\ud800", 3])
async def test_a_command_that_names_no_program_is_refused(word: object) -> None:
    server = {"command": ["python", word], "tools": {"price": "none"}}
    with pytest.raises(InvalidInput, match="command must be a list of texts"):
        registry.environment("tools", {"servers": [server]}, HOSTING)


URLS = ["http://[::1", "http://a:99999/", "http://", "http://user:word@a/", "https://a:b/", 3]


@pytest.mark.parametrize("url", URLS)
async def test_a_url_that_is_none_is_refused_before_anything_runs(url: Any) -> None:
    with pytest.raises(InvalidInput, match=r"servers\.0\.url must be https:// or http://, a host"):
        server = {"url": url, "tools": ["a"]}
        registry.environment("tools", {"servers": [server]}, HOSTING)
