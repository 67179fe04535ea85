"""`banyan page`: addresses, and what it says where it cannot show anything."""

import json
from pathlib import Path

import pytest

from banyan.cli import page
from banyan.cli.store import checked
from services.supervisor.state import HOST, StateFolder
from tests.cli.command import banyan


def test_without_a_store_it_says_what_to_do(tmp_path: Path) -> None:
    ended = banyan("page", "--no-open", "--state", tmp_path / "none")
    assert ended.returncode == 2 and ended.stdout == ""
    assert "holds no store; run banyan train first" in ended.stderr


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_a_port_is_a_port(tmp_path: Path, port: str) -> None:
    assert banyan("page", "--port", port, "--state", tmp_path).returncode == 2


def test_a_browser_is_one_with_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert not page._has_browser()
    monkeypatch.setenv("DISPLAY", ":0")
    assert page._has_browser()


def test_the_address_stays_that_of_the_folder_while_its_port_is_free(tmp_path: Path) -> None:
    import socket

    folder = StateFolder.open(tmp_path / "s")
    folder.choose_ports()
    (tmp_path / "s" / "store.sqlite").touch()
    port = json.loads((tmp_path / "s" / "ports.json").read_text())["page"]
    assert page._own_port(checked(tmp_path / "s")) == port
    with socket.socket() as taken:
        taken.bind((HOST, port))
        taken.listen()
        assert page._own_port(folder) == 0
