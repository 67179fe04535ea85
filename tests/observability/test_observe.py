"""`banyan observe`: what it starts and says, with real programs and without any."""

import os
import signal
import stat
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from banyan.cli.observe import programs
from banyan.cli.observe.tool import Tool
from services.chassis.process.private_files import folder
from tests.cli.command import banyan
from tests.observability.observing import observing
from tests.observability.reading import Metrics, needs_prometheus

VIEWER = """#!{python}
import http.server, os, sys

assert sys.argv[1:] == ["serve"], sys.argv
assert os.path.isdir(os.environ["PHOENIX_WORKING_DIR"])
assert os.environ["PHOENIX_TELEMETRY_ENABLED"] == "false"

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

where = os.environ["PHOENIX_HOST"], int(os.environ["PHOENIX_PORT"])
http.server.HTTPServer(where, Handler).serve_forever()
"""


def program(folder: Path, name: str, text: str) -> str:
    """Write a program; return a PATH on which it is the only one."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(folder)


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def test_what_is_missing_is_said_with_the_way_to_get_it(tmp_path: Path) -> None:
    done = banyan("observe", "--state", tmp_path, PATH=str(tmp_path))
    assert done.returncode == 1
    assert "apt install prometheus" in done.stdout
    assert "uv tool install arize-phoenix" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("there", "path"), [("", ""), ("/classic", "/classic"), ("/new", "")])
def test_the_pages_of_a_prometheus_are_where_it_answers(
    there: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = Tool("Prometheus", "http://127.0.0.1:9", Path("log"), None)  # type: ignore[arg-type]
    monkeypatch.setattr(Tool, "answers", lambda self, page: page == f"{there}/alerts")
    assert programs.pages(tool) == path


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = banyan("observe", "--state", tmp_path / "none")
    assert done.returncode == 2 and "there is no folder" in done.stderr


def test_a_program_that_ends_at_once_is_named_with_its_last_words(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "prometheus", "#!{python}\nexit('no space left for me')\n")
    done = banyan("observe", "--state", tmp_path, PATH=path)
    assert done.returncode == 2
    assert "Prometheus ended with status 1: no space left for me" in done.stderr
    assert str(tmp_path / "observe" / "prometheus.log") in done.stderr


@pytest.mark.parametrize(("name", "title"), [("prometheus", "Prometheus"), ("phoenix", "Phoenix")])
def test_a_second_one_on_the_same_data_is_refused(tmp_path: Path, name: str, title: str) -> None:
    """Not every build of Prometheus locks its data, and two writers destroy them."""
    path = program(tmp_path / "bin", name, "#!{python}\nexit('it was started')\n")
    with programs._alone(folder(tmp_path / "observe"), title):
        done = banyan("observe", "--state", tmp_path, PATH=path)
    assert done.returncode == 2
    assert f"{title} already runs on {tmp_path}" in done.stderr
    assert f"banyan observe of process {os.getpid()}" in done.stderr
    assert "it was started" in banyan("observe", "--state", tmp_path, PATH=path).stderr


@pytest.mark.slow
async def test_a_viewer_is_started_with_ports_of_its_own_and_ends_with_the_command(
    tmp_path: Path,
) -> None:
    path = program(tmp_path / "bin", "phoenix", VIEWER)
    async with observing(tmp_path, path) as seen:
        address = seen.address("traces")
        assert answers(address)
        assert seen.address("more") != address
        assert "OTEL_EXPORTER_OTLP_ENDPOINT=" in seen.lines["more"]
        assert seen.lines["last step"] == "none yet"
        assert "Prometheus is not installed" in seen.lines["metrics"]
        assert await seen.end(signal.SIGTERM) == 0
    assert not answers(address)


@pytest.mark.slow
@needs_prometheus
async def test_prometheus_dies_with_a_killed_command_and_is_missed_if_it_ends(
    tmp_path: Path, eventually
) -> None:
    async with observing(tmp_path) as seen:
        address = seen.address("metrics")
        assert Metrics(address).query("vector(1)")
        for page in ("alerts", "targets", "reward"):
            where = seen.lines[page].split()[0]
            with urllib.request.urlopen(where, timeout=5) as answer:
                assert answer.status == 200, where
        assert (tmp_path / "observe").stat().st_mode & 0o077 == 0
        await seen.end(signal.SIGKILL)
    await eventually(lambda: not answers(address), 15.0)
    async with observing(tmp_path) as seen:  # on the data of before
        pid = next(p for p in _pids() if _parent(p) == seen.process.pid)
        os.kill(pid, signal.SIGKILL)
        assert await seen.process.wait() == 2


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
