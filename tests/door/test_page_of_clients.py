"""The commands and the code of docs/clients.md, tried as they are written there."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import json_format

import banyan
from banyan.runtime import secret, state_folder
from banyan.v1 import treestore_service_pb2
from tests.cli.command import ROOT

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


_CREDIT = "Credit by another estimator"


def block(section: str, kind: str) -> str:
    """Return the first block of code of a section."""
    text = PAGE.split(f"# {section}\n", 1)[1]
    return next(code for found, code in _BLOCK.findall(text) if found == kind)


@pytest.fixture
def here(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder whose state folder is that of an earlier run."""
    shutil.copytree(state, tmp_path / ".banyan")
    secret.make(tmp_path / ".banyan" / "secret")
    (tmp_path / ".banyan" / state_folder.PORTS_FILE).write_text('{"treestore": 4321}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("BANYAN_STATE", raising=False)
    return tmp_path


def test_reading_prints_steps_and_trees(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("Read runs and trees", "python"), {"banyan": banyan})
    said = capsys.readouterr().out
    steps = re.findall(r"^(\d) [\d.]+$", said, re.MULTILINE)
    assert said.startswith("TRAINING 5 ") and steps == ["1", "2", "3", "4", "5"], said
    assert "advantage +0.000" in said


def test_credit_by_another_estimator_is_printed(
    here: Path, store: banyan.Store, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = next(store.run().trees(state="CONSUMED"))
    code = re.sub(r'tree\("\w+"\)', f'tree("{tree.tree_id}")', block(_CREDIT, "python"))
    exec(code, {"store": store})
    assert len(capsys.readouterr().out.splitlines()) >= tree.leaves


@contextlib.contextmanager
def page(folder: Path) -> Iterator[str]:
    """Run `banyan page --no-open`; yield the address that it prints."""
    command = [sys.executable, "-P", "-m", "banyan.cli", "page", "--no-open"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("page http://"), line
        yield line.split()[1].rstrip("/")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def run(script: str, folder: Path, **env: str) -> str:
    """Run a script in a folder; return what it prints."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_curl_reads_and_is_told_that_nothing_runs(here: Path) -> None:
    with page(here) as address:
        script = re.sub(r"^PAGE=.*$", f"PAGE={address}", block("HTTP", "sh"), flags=re.MULTILINE)
        said = run(script, here)
    lines = [json.loads(line) for line in said.splitlines()]
    assert [step for step, _ in lines[:5]] == [1, 2, 3, 4, 5]
    assert len(lines) > 9 and any(advantage is not None for _, _, advantage in lines[5:-1])
    assert lines[-1]["error"]["reason"] == "NOT_RUNNING"


def test_the_page_names_services_and_calls_that_there_are() -> None:
    calls = treestore_service_pb2.DESCRIPTOR.services_by_name["TreeStoreService"]
    script = block("gRPC from elsewhere", "sh")
    assert f"describe {calls.full_name}\n" in script
    (named,) = re.findall(rf"{re.escape(calls.full_name)}/(\w+)", script)
    assert named in calls.methods_by_name
    (asked,) = re.findall(r"-d '(.*?)'", script)
    made = json_format.Parse(asked, treestore_service_pb2.ListTreesRequest())
    assert made.filter.limit == 3


def test_grpcurls_address_and_secret_are_found(here: Path) -> None:
    lines = block("gRPC from elsewhere", "sh").splitlines()[:2]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shown = run("\n".join([*lines, 'echo "$SECRET" "$STORE"']), here, PATH=path)
    assert shown.split() == [(here / ".banyan" / "secret").read_text().strip(), "127.0.0.1:4321"]
