"""The process that reads a data set: its deadlines, and what is said if it fails."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from banyan.errors import InvalidInput
from banyan.recipe import Task
from banyan.recipe.hub_dataset import HubDataset
from services.gateway.tasks import file
from services.gateway.tasks.sources import hub, hub_reader

DATASET = HubDataset("org/name")
TASK = Task(name="file", path="hf://org/name", reward="rewards:exact")
BEGINNING = """
import json, os, sys, time
import pyarrow, pyarrow.ipc
def tell(**facts):
    sys.stdout.buffer.write(json.dumps(facts).encode() + b"\\n")
    sys.stdout.flush()
def send(*rows):
    batch = pyarrow.RecordBatch.from_pylist(list(rows))
    stream = pyarrow.ipc.new_stream(sys.stdout.buffer, batch.schema)
    stream.write_batch(batch)
    sys.stdout.flush()
    return stream
SOURCE = dict(path="hf://org/name@" + "a" * 40 + "/default:train", unreachable="")
"""


def programmed(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(hub, "OURS", (sys.executable, "-c", BEGINNING + program))


def refusal() -> str:
    with pytest.raises(InvalidInput, match=r"^cannot read hf://org/name:train: ") as caught:
        list(hub.records(DATASET))
    return str(caught.value)


@pytest.mark.parametrize(
    ("limit", "program"),
    [
        ("ANSWER_S", "time.sleep(60)"),
        ("FETCH_S", "tell(**SOURCE); time.sleep(60)"),
        ("BATCH_S", "tell(**SOURCE); tell(rows=2); send(dict(prompt='a')); time.sleep(60)"),
    ],
)
def test_no_wait_is_without_end(monkeypatch: pytest.MonkeyPatch, limit: str, program: str) -> None:
    programmed(monkeypatch, program)
    monkeypatch.setattr(hub, limit, 1.5)
    begun = time.monotonic()
    assert "nothing came in 2 s; load it once with `datasets`" in refusal()
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("sys.exit('no memory is left')", "ended with status 1: no memory is left; load it once"),
        ("os.kill(os.getpid(), 9)", "ended with status -9"),
        ("tell(**SOURCE); sys.exit('disk full')", "ended with status 1: disk full; load it once"),
        ("tell(**SOURCE); tell(rows=2); print('no Arrow')", "ended with status 0: "),
        (
            "tell(**SOURCE); tell(rows=5); send(dict(prompt='a'), dict(prompt='b'))",
            "ended with status 0: it gave 2 of 5 rows",
        ),
        (
            "tell(**SOURCE); tell(rows=5); send(dict(prompt='a')); os.kill(os.getpid(), 9)",
            "ended with status -9: it gave 1 of 5 rows",
        ),
    ],
)
def test_a_reader_that_fails_is_no_short_data_set(
    monkeypatch: pytest.MonkeyPatch, program: str, complaint: str
) -> None:
    programmed(monkeypatch, program)
    assert complaint in refusal()


def test_a_data_set_without_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    programmed(
        monkeypatch,
        "tell(**SOURCE); tell(rows=0);"
        "pyarrow.ipc.new_stream(sys.stdout.buffer, pyarrow.schema([])).close()",
    )
    with pytest.raises(InvalidInput, match=r"^hf://org/name holds no rows"):
        file.rows(TASK, Path("unused"))


def test_a_reader_is_ended_once_nobody_reads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "pid"
    programmed(
        monkeypatch,
        f"open({str(mark)!r}, 'w').write(str(os.getpid())); tell(**SOURCE); tell(rows=2);"
        "send(dict(prompt='a')); time.sleep(60)",
    )
    assert file.first(TASK, Path("unused")) == {"prompt": "a"}
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_a_missing_package_is_named_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['datasets'] = None\n")
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), before))))
    assert "needs the package datasets; pip install 'banyan-rl[datasets]', or name a" in refusal()
    with pytest.raises(InvalidInput, match=r"pip install 'banyan-rl\[datasets\]'"):
        hub.fixed(DATASET)


def test_no_library_of_the_hub_is_loaded_here() -> None:
    code = (
        "import sys, services.gateway.server, services.gateway.tasks.sources.hub;"
        "print({'datasets', 'huggingface_hub', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr


def test_without_a_hub_the_newest_cached_copy_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, naming = ModuleType("datasets"), ModuleType("datasets.naming")
    config, snake = SimpleNamespace(HF_DATASETS_CACHE=str(tmp_path)), str.lower
    monkeypatch.setattr(library, "config", config, raising=False)
    monkeypatch.setattr(naming, "camelcase_to_snakecase", snake, raising=False)
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setitem(sys.modules, "datasets.naming", naming)
    for day, letter in enumerate("bca"):
        copy = tmp_path / "org___name" / "default" / "0.0.0" / (letter * 40)
        copy.mkdir(parents=True)
        (copy / "dataset_info.json").write_text('{"config_name": "default"}')
        os.utime(copy, (day, day))

    def unreachable(dataset: HubDataset) -> str:
        raise hub_reader.Unreachable("no network")

    monkeypatch.setattr(hub_reader, "_commit", unreachable)
    opened, _, cause = hub_reader._opened(DATASET)
    assert (str(opened), cause) == (f"hf://org/name@{'a' * 40}/default:train", "no network")
    fixed = HubDataset("org/name", "c" * 40, "default")
    assert hub_reader._opened(fixed)[0] == fixed, "the commit that is named, not the newest"
