"""The API of a real gateway, fuzzed by schemathesis by what its own OpenAPI document says.

Schemathesis sends values that the document allows, at and beyond each bound, of other types, by
other methods, and without the token. It fails on a 5xx, a status, type or answer that the document
does not have, a wrong value that is taken, a right one that is refused, and a token that is not
asked for. Its choices are the same each time.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.page.conftest import SECRET
from tests.gateway.page.documented import strict
from tests.gateway.page.whole_site import LETTERS, WholeSite, whole_site

DEADLINE_S = 240
REPORT = "report.json"
CONFIG = """
# No such thing, and a run whose state forbids it, are answers to right values; a 400 is none.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "404", "409"]
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "404", "405", "409", "413", "414"]
"""


@pytest.mark.slow
async def test_the_api_keeps_to_its_document_whatever_comes(tmp_path: Path) -> None:
    async with whole_site(tmp_path / "state", SECRET) as site:
        document = await described(site)
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        (tmp_path / "schemathesis.toml").write_text(CONFIG)
        said, status = await fuzzed(tmp_path, site.address)
        assert status == 0, said[-20_000:]
        report = json.loads((tmp_path / REPORT).read_text())
        assert report["complete"] and report["operations"]["tested"] == len(declared(document))
        never = [
            name
            for name, phases in report["valid_rates"].items()
            if not any(rates["accepted"] for rates in phases.values())
        ]
        assert len(report["valid_rates"]) == len(declared(document)) and not never, never
        async with httpx.AsyncClient(base_url=f"http://{site.address}") as client:
            assert (await client.get("/api/runs")).status_code == 200, "it is gone after that"


async def fuzzed(folder: Path, address: str) -> tuple[str, int]:
    """Run schemathesis in a process of its own; return its words and its exit status."""
    command = (
        f"-m schemathesis.cli --config-file schemathesis.toml run openapi.json"
        f" --url http://{address} --phases coverage,fuzzing --max-examples 10 --workers 1"
        " --seed 1 --generation-deterministic --no-color"
        f" --continue-on-failure --request-timeout 2 --warnings off --report-json-path {REPORT}"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command.split(),
        "-H",
        f"Authorization: Bearer {SECRET}",
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return said.decode(errors="replace"), process.returncode or 0


async def described(site: WholeSite) -> dict[str, Any]:
    """Return the gateway's document, with what there is to be asked for among its values.

    Random ids would never find anything, and only the server makes cursors.
    """
    async with httpx.AsyncClient(base_url=f"http://{site.address}") as client:
        document: dict[str, Any] = (await client.get("/api/openapi.json")).json()
        for path, item in document["paths"].items():
            for method, operation in item.items():
                for parameter in operation["parameters"]:
                    found = known(site, method, path, parameter["name"])
                    if parameter["name"] == "after" and parameter["schema"]["type"] == "string":
                        parameter["schema"] = {"enum": await cursors(client, site, path)}
                    elif found:
                        parameter["schema"] = {"anyOf": [{"enum": found}, parameter["schema"]]}
    return strict(document)


def declared(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return method and path of each operation."""
    return [(method, path) for path, item in document["paths"].items() for method in item]


def known(site: WholeSite, method: str, path: str, name: str) -> list[Any]:
    """Return values of a parameter that are there."""
    if method == "delete":
        return list(site.spares)
    if path.endswith("/resume"):
        return [site.paused]
    whole = {"run": site.runs, "tree": site.trees, "segment": site.segments}
    return list(whole.get(name, [])) or (list(range(1, LETTERS + 1)) if name == "letter" else [])


async def cursors(client: httpx.AsyncClient, site: WholeSite, path: str) -> list[str]:
    """Return cursors of a list."""
    place, found = path.format(run=site.runs[0]), []
    for limit in (1, 2):
        answer = await client.get(f"{place}?limit={limit}")
        found.append(answer.json()["next"])
    assert all(found), answer.text
    return found
