"""`banyan export --push`: private unless asked, to a folder of its own, and the card's facts."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from banyan.cli.export import export as command
from banyan.cli.export.model_card import card
from banyan.errors import InvalidInput
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data
from tests.cli.export.test_push import facts


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Note what would be uploaded of a run that is there."""
    found: list[tuple[str, bool]] = []

    @contextlib.contextmanager
    def reading(state: Path) -> Iterator[Any]:
        yield SimpleNamespace(run=lambda name: rs.Run(run_id=name))

    def push(folder: Path, repository: str, private: bool) -> str:
        found.append((repository, private))
        return f"https://hub/{repository}"

    written = {"folder": "f", "checkpoint": "step-1", "trees": 3, "kind": "model"}
    monkeypatch.setattr(command, "reading", reading)
    monkeypatch.setattr(command.hub, "push", push)
    monkeypatch.setattr(command, "_written", lambda *_: written)
    return found


def test_an_upload_is_private_unless_it_shall_be_public(
    pushed: list[tuple[str, bool]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for public in (False, True):
        command.export("r", tmp_path / "to", repository="me/sums", public=public, as_json=True)
    assert pushed == [("me/sums", True), ("me/sums", False)]
    assert json.loads(capsys.readouterr().out.splitlines()[0])["url"] == "https://hub/me/sums"
    command.export("r", tmp_path / "to")
    assert len(pushed) == 2, "nothing is uploaded that nobody asked for"


def test_a_folder_with_files_is_left_as_it_is(
    pushed: list[tuple[str, bool]], tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InvalidInput, match="exists and is not empty; name a new folder"):
        command.export("r", tmp_path, repository="me/sums")
    with pytest.raises(InvalidInput, match="is not a folder"):
        command.export("r", tmp_path / "mine", repository="me/sums")
    assert pushed == []


def test_a_card_names_no_path_of_this_machine_and_no_revision_as_a_model() -> None:
    told = facts(model="Qwen/Qwen2.5-0.5B@abc123")
    recipe = json.loads(told.run.recipe_json)
    recipe["task"] = {"path": "~/private/rows.jsonl", "more": ["/home/me/other.jsonl"]}
    told.run.recipe_json = json.dumps(recipe)
    text = card(told)
    assert "private" not in text and "/home/me" not in text
    assert "`…/rows.jsonl`" in text and "…/other.jsonl" in text
    assert yaml.safe_load(text.split("---\n")[1])["base_model"] == "Qwen/Qwen2.5-0.5B"


def test_a_cards_numbers_are_those_of_their_names() -> None:
    told = facts()
    told.progress.samples.unique_tokens = 900
    text = card(told)
    saved = plain_data.saved_tokens(told.progress.samples)
    assert saved not in (2000, 1234) and f"| tokens that sharing saved | {saved:,} |" in text
    assert "| sampled tokens | 1,234 |" in text
    assert "step-5" not in text, "results amid a run are not those of the model"
