"""A user's class as an environment of bytes, without a child: its version, row and hosting."""

from pathlib import Path
from typing import Any

import pytest

from banyan.environments.hosted import Hosted
from banyan.environments.hosting import HostedResult, Hosting
from banyan.environments.observation import ToolOutcome
from banyan.errors import InvalidInput, Refused
from services.verifier.environments.hosts import _spec
from tests.verifier.hosted.test_hosts import ROW, hosted


def test_the_version_is_that_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "versioned.py").write_text("class A: ...")
    first = Hosted("versioned:A", {}, Hosting(end=".")).version
    (tmp_path / "versioned.py").write_text("class A: pass")
    assert first != Hosted("versioned:A", {}, Hosting(end=".")).version
    with pytest.raises(InvalidInput, match="there is no module 'unwritten'"):
        _ = Hosted("unwritten:A", {}, Hosting(end=".")).version


def test_a_row_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a row has 29038 bytes"):
        hosted("Corridor").reset({"text": "x" * 29_000}, 1)


def test_a_result_out_of_place_is_refused() -> None:
    turn = hosted("Corridor").turn(hosted("Corridor").reset(ROW, 1), "right")
    next(turn)
    with pytest.raises(Refused):
        turn.send(HostedResult(ToolOutcome.FAILED, diverged=2))


def test_a_child_has_what_its_hosting_says() -> None:
    says: dict[str, Any] = {"memory_mb": 99, "concurrency": 3, "python": "/py", "readable": ("/r",)}
    hosting = Hosting(end=".", seconds=2.5, withheld=("/w",), **says)
    environment = Hosted("m:Class", {"length": 3}, hosting)
    child = _spec(next(environment.turn(environment.reset(ROW, 1), "right")))
    found = {name: getattr(child, name) for name in (*says, "withheld", "deadline_s")}
    assert found == {**says, "withheld": ("/w",), "deadline_s": 2.5}
    assert (child.name, child.settings, child.environment) == ("m:Class", {"length": 3}, True)
