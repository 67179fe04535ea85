"""Rows from data sets of the hub, read by `datasets` from a hub on this machine and its cache."""

import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from banyan.errors import InvalidInput
from banyan.recipe import Task
from banyan.recipe.hub_dataset import parse
from services.gateway.tasks import file, load
from tests.tasks.fake_hub import FakeHub, served

pytestmark = pytest.mark.slow  # each reading is a process that imports `datasets`

FIRST = [{"question": "1 + 1?", "answer": "2"}, {"question": "1 + 2?", "answer": "3"}]
SECOND = [{"question": "2 + 2?", "answer": "4"}]
CONFIGS = b"""---
configs:
- {config_name: main, data_files: main.jsonl}
- {config_name: socratic, data_files: socratic.jsonl}
---
"""
READ_ONLY = """
import errno, os, sys
def refuse(event, args):
    writes = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if (writes or event == "os.mkdir") and str(args[0]).startswith({folder!r}):
        raise OSError(errno.EROFS, "Read-only file system", args[0])
sys.addaudithook(refuse)
"""  # root writes wherever it likes, whatever the mode of a folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub, and an empty cache."""
    with served() as site:
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_ENDPOINT", site.address)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_TOKEN", "HTTP_PROXY", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield site


def lines(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: list[dict[str, object]]) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue()


def task(path: str, prompt: str = "question") -> Task:
    return Task(name="file", path=path, reward="rewards:exact", prompt=prompt)


def rows(path: str, **more: str) -> list[dict[str, object]]:
    return load(task(path, **more), Path("unused"))


def splits() -> Mapping[str, bytes]:
    return {"data/train.jsonl": lines(FIRST), "data/test.jsonl": lines(SECOND)}


def test_a_split_is_read_from_the_hub_and_without_it_from_the_cache(
    site: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit = site.put("org/MyRows", splits())
    assert rows("hf://org/MyRows") == FIRST
    assert rows("hf://org/MyRows:test") == SECOND
    site.broken = True
    assert rows("hf://org/MyRows") == FIRST
    assert f"hf://org/MyRows@{commit}/default:train is cached" in caplog.text
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert rows("hf://org/MyRows:test") == SECOND
    assert "offline mode is enabled" in caplog.text


def test_a_fixed_data_set_stays_as_it_was(site: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = site.put("org/rows", {"train.jsonl": lines(FIRST)})
    fixed = file.fixed(task("hf://org/rows"))
    assert fixed.path == f"hf://org/rows@{first}/default:train"
    assert file.fixed(fixed) == fixed
    site.put("org/rows", {"train.jsonl": lines(SECOND)})
    assert rows("hf://org/rows") == SECOND
    assert rows(fixed.path) == FIRST, "from the hub, though the cache has a newer commit"
    site.requests.clear()
    assert rows(fixed.path) == FIRST
    assert not [asked for asked in site.requests if "org/rows" in asked], "from the cache"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert rows(fixed.path) == FIRST, "the cached copy of that commit, not the newest"
    assert rows("hf://org/rows") in (FIRST, SECOND)


def test_a_copy_of_the_cache_serves_where_no_hub_is(
    site: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put("org/rows", splits())
    assert rows("hf://org/rows") == FIRST
    shutil.move(tmp_path / "hf", tmp_path / "carried")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "carried"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert rows("hf://org/rows") == FIRST


def test_a_cache_that_may_only_be_read_is_enough(
    site: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put("org/rows", splits())
    fixed = file.fixed(task("hf://org/rows"))
    assert rows(fixed.path) == FIRST
    (tmp_path / "sitecustomize.py").write_text(READ_ONLY.format(folder=str(tmp_path / "hf")))
    search = (str(tmp_path), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, search)))
    site.broken = True
    assert rows(fixed.path) == rows("hf://org/rows") == FIRST
    site.broken = False
    with pytest.raises(InvalidInput, match=r"Read-only file system.*; load it once"):
        rows("hf://org/rows")  # which goes through the hub


def test_a_configuration_must_be_named_where_there_are_several(
    site: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"README.md": CONFIGS, "main.jsonl": lines(FIRST), "socratic.jsonl": lines(SECOND)}
    site.put("org/rows", files)
    with pytest.raises(InvalidInput, match=r"\['main', 'socratic'\].*; write hf://ORG/NAME"):
        rows("hf://org/rows")
    assert rows("hf://org/rows/socratic") == SECOND
    with pytest.raises(InvalidInput, match=r"\['main', 'socratic'\].*; write hf://ORG/NAME"):
        rows("hf://org/rows")  # which is not the one that is cached
    assert rows("hf://org/rows/main:train") == FIRST
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InvalidInput, match=r"main, socratic are cached; name one; write hf://"):
        rows("hf://org/rows")
    assert rows("hf://org/rows/main") == FIRST


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("hf://org/none", r"shows it only to those who are logged in; check the name, and log in"),
        ("hf://org/closed", r"gated dataset .* authenticated.*; check the name, and log in"),
        ("hf://org/rows@v9", r"it has no revision 'v9'; write hf://ORG/NAME"),
        ("hf://org/rows/odd", r"'odd' not found\. Available: \['default'\]; write hf://ORG/NAME"),
        ("hf://org/rows:dev", r"\"dev\"\. Should be one of \['train', 'test'\]\.; write hf://ORG"),
        ("hf://org/text", r"there is no field 'question', only text; set task.prompt"),
        ("hf://org/scripts", r"scripts are no longer supported.*; load it once"),
    ],
)
def test_what_the_hub_does_not_have_is_named(site: FakeHub, path: str, complaint: str) -> None:
    site.put("org/rows", splits())
    site.put("org/closed", splits())
    site.put("org/text", {"train.txt": b"one\ntwo\n"})
    site.put("org/scripts", {"scripts.py": b""})
    site.gated.add("org/closed")
    with pytest.raises(InvalidInput, match=complaint) as caught:
        rows(path)
    assert f"{parse(path)}" in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "path", "complaint"),
    [
        ("503", "hf://org/rows", r"\(Server error '503 .*\), and no copy is cached"),
        ("no listener", "hf://org/rows", r"\(.*Connection refused\), and no copy is cached"),
        ("offline", "hf://org/rows", r"\(.*offline mode is enabled.*\), and no copy is cached"),
        ("offline", "hf://org/rows@main", r"\(.*\), and it alone knows the commit of 'main'"),
        ("offline", f"hf://org/rows@{'a' * 40}/default", r"\(.*\), and no copy is cached"),
    ],
)
def test_a_hub_that_is_not_reached_is_named_with_what_to_do(
    site: FakeHub, monkeypatch: pytest.MonkeyPatch, fault: str, path: str, complaint: str
) -> None:
    site.put("org/rows", splits())
    site.broken = fault == "503"
    if fault == "no listener":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    if fault == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InvalidInput, match=r"cannot be reached " + complaint) as caught:
        rows(path)
    assert "set HF_HOME to a copy of that cache, or save it there as" in str(caught.value)
    if path == "hf://org/rows":
        with pytest.raises(InvalidInput, match=complaint):
            file.fixed(task(path))


def test_columns_have_the_types_that_parquet_has(site: FakeHub) -> None:
    plain: dict[str, object] = {"question": "a", "more": {"tags": ["x", None]}, "score": 0.5}
    site.put("org/plain", {"train.parquet": parquet([plain])})
    assert rows("hf://org/plain") == [plain]
    for value in (Decimal("1.50"), datetime(2026, 1, 2, tzinfo=UTC), b"\0"):
        name = f"org/{type(value).__name__}"
        site.put(name, {"train.parquet": parquet([{"question": "a", "value": value}])})
        with pytest.raises(InvalidInput, match=r":train row 1 holds a value that JSON has no"):
            rows(f"hf://{name}")


def test_many_rows_arrive_in_order(site: FakeHub) -> None:
    many = [{"question": f"{number}?"} for number in range(5_000)]
    site.put("org/many", {"train.jsonl": lines(many)})
    assert rows("hf://org/many") == many
    assert file.first(task("hf://org/many"), Path("unused")) == many[0]


def test_a_folder_of_that_name_is_not_taken_for_it(
    site: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put("org/rows", splits())
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "org" / "rows"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_bytes(lines(SECOND))
    assert rows("hf://org/rows") == FIRST


def test_the_environment_of_this_process_stays_as_it_is(site: FakeHub) -> None:
    site.put("org/rows", splits())
    before = dict(os.environ)
    assert rows("hf://org/rows") == FIRST
    assert dict(os.environ) == before
