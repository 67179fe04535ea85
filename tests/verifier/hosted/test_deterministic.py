"""What deterministic runs ask of classes and tools: that they say it, and that it is so."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan import registry
from banyan.environments.hosted import Hosted
from banyan.environments.hosting import Hosting
from banyan.errors import InvalidInput
from services.verifier.environments.hosts import Hosts
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from tests.verifier.hosted.test_hosts import step

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTING = Hosting(end=".", seconds=5.0, deterministic=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[Hosts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        pool = Pool(Limits(deadline_s=5.0), width=1)
        yield Hosts(pool)
        await pool.close()


async def begun(hosts: Hosts, name: str, settings: Any, hosting: Hosting = HOSTING) -> str:
    environment = registry.environment(name, settings, hosting)
    return (await step(hosts, environment, environment.reset({"coin": 2}, 7), "take")).text


async def test_a_class_that_does_not_say_it_is_refused_by_name(hosts: Hosts) -> None:
    words = r"'corridors:Corridor' cannot be loaded: it does not say that it is deterministic"
    with pytest.raises(InvalidInput, match=words):
        await begun(hosts, "corridors:Corridor", {})
    usual = replace(HOSTING, deterministic=False)
    assert await begun(hosts, "corridors:Corridor", {}, usual) == "nothing here"


async def test_a_tool_that_does_not_say_it_is_refused_by_name(hosts: Hosts) -> None:
    settings = {"functions": ["shop:pieces", "shop:price"]}
    with pytest.raises(InvalidInput, match="tool price does not say that it is deterministic"):
        await begun(hosts, "tools", settings)
    assert "a call is no JSON" not in await begun(hosts, "tools", {"functions": ["shop:pieces"]})


async def test_sets_of_words_have_one_order_in_all_children(hosts: Hosts) -> None:
    environment = Hosted("corridors:Worded", {}, HOSTING)
    start = environment.reset({}, 7)
    first = await step(hosts, environment, start, "go")
    pool = Pool(Limits(deadline_s=5.0), width=1)
    try:
        other = await step(Hosts(pool), environment, start, "go")
    finally:
        await pool.close()
    assert first.text == other.text and len(first.text.split()) == 50
