"""The API's own description, and the files of the page as they are packaged."""

import json
import re
from pathlib import Path
from typing import Any

import httpx

from services.gateway.page.api.endpoint import LIMIT
from services.gateway.page.documents import run_types, system_types, tree_types
from services.gateway.page.http import openapi
from services.gateway.page.http.assets import TYPES, Assets
from tests.gateway.page.documented import Documented
from tests.gateway.page.made_trees import grow


async def test_the_document_of_the_api_has_every_endpoint(here: Any) -> None:
    described = await here.get("/api/openapi.json")
    places = {
        (method.upper(), path) for path, item in described["paths"].items() for method in item
    }
    assert places == {(e.method, e.path) for e in here.page.endpoints} and len(places) == 18
    for endpoint in here.page.endpoints:
        operation = described["paths"][endpoint.path][endpoint.method.lower()]
        named = {(p["name"], p["in"]) for p in operation["parameters"]}
        in_path = {part.strip("{}") for part in endpoint.path.split("/") if part.startswith("{")}
        assert {name for name, where in named if where == "path"} == in_path
        assert ("security" in operation) == (endpoint.method != "GET")
    assert openapi.document(here.page.endpoints, "1")["openapi"] == "3.1.0"
    assert described["paths"]["/api/runs"]["get"]["parameters"][0]["schema"] == LIMIT.schema()


async def test_each_type_is_named_once_and_used(here: Any) -> None:
    document = openapi.document(here.page.endpoints, "1")
    text = json.dumps(document)
    parts = (run_types.COMPONENTS, tree_types.COMPONENTS, system_types.COMPONENTS)
    assert len(document["components"]["schemas"]) == sum(map(len, parts))
    for name in document["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in text, name
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in document["components"]["schemas"]


async def test_answers_are_what_is_declared(here: Any) -> None:
    documented = Documented(here.page.endpoints)
    spec, run = here.store.forge.spec(), here.store.forge.run_id
    leaves = await grow(here.store, spec, (2,))
    values = {"run": run, "tree": spec.tree_id.hex(), "segment": leaves[0].id.hex()}
    for endpoint in here.page.endpoints:
        if endpoint.method == "GET" and not endpoint.stream:
            answer = await here.get(endpoint.path.format(**values))
            documented.check(endpoint.path, answer)


async def test_documented_endpoints_are_those_there_are(here: Any) -> None:
    page = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
    for endpoint in here.page.endpoints:
        assert f"`{endpoint.method} {endpoint.path}`" in page, "docs/http.md lacks it"
        for parameter in (*endpoint.parameters, *endpoint.body):
            assert f"`{parameter.name}`" in page, (endpoint.path, parameter.name)


async def test_files_have_types_tags_and_no_way_out(here: Any) -> None:
    client: httpx.AsyncClient = here.client
    page = await client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    for path in ("/runs/anything", "/trees/ab", "/x/y/z"):
        assert (await client.get(path)).text == page.text
    again = await client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    assert again.headers["etag"] == page.headers["etag"]
    head = await client.head("/")
    assert head.status_code == 200 and head.content == b""
    for path in ("/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/..%2fapp.py", "/assets/"):
        assert (await client.get(path)).status_code == 404


def test_each_packaged_file_has_a_known_type() -> None:
    names = Assets()._files
    known = {*TYPES}
    plain = {name for name in names if "." not in name.rpartition("/")[2]}
    assert "index.html" in names
    assert all(name.rpartition("/")[2].startswith("LICENSE") for name in plain)
    assert {name.rpartition(".")[2] for name in names if name not in plain} <= known


def test_the_wheel_has_the_files(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    root = Path(__file__).parents[3]
    builder = WheelBuilder(str(root))
    packed = {file.distribution_path for file in builder.recurse_included_files()}
    folder = root / "services" / "gateway" / "page" / "assets"
    files = {f.relative_to(root).as_posix() for f in folder.rglob("*") if f.is_file()}
    assert files and files <= packed
