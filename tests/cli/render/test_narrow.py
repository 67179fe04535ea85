"""What commands print on a terminal of 80 columns: nothing is wider, ids and reasons stay whole."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from banyan.cli.doctor import doctor as machine
from banyan.cli.main import app
from banyan.cli.render import console
from banyan.cli.runs import runs
from tests.cli.command import banyan

RUN, TREE = (
    "quickstart-5b371bd8",
    "f913099bd236e19728c99ec8d8bc5f943d7b815e49d2cb377d6c7afb1f480cfb",
)
REASON = "UNSCORABLE: the scorer rewards:reward raised ValueError at line 12 of rewards.py"
ROWS: Mapping[str, tuple[Sequence[str], dict[str, Any]]] = {
    "runs ls": (
        ("run_id", "state", "step", "created", "cause"),
        {
            "run_id": RUN,
            "state": "EVALUATING_AFTER",
            "step": 400,
            "created": "2026-11-29T11:17:22+00:00",
            "cause": "learner 3: the loss was not finite in 20 steps one after the other",
        },
    ),
    "runs groups": (
        ("group", "row", "trees", "settings", "max_new_tokens", "batches", "why"),
        {
            "group": 120,
            "row": "0123456789abcdef",
            "trees": 2,
            "settings": {"width": 8, "segment": 6},
            "max_new_tokens": 24,
            "batches": [15, 16],
            "why": "predicted difficulty 0.512 out of 12 reference rows, nearest to 0.5",
        },
    ),
    "trees ls": (
        (
            *("tree_id", "state", "leaves", "sampled_tokens", "mean_reward", "policy_step"),
            *("label", "reason"),
        ),
        {
            "tree_id": TREE[:16],
            "state": "CONSUMED",
            "leaves": 16,
            "sampled_tokens": 12_345,
            "mean_reward": 0.8751,
            "policy_step": 400,
            "label": "step-200-greedy",
            "reason": REASON,
        },
    ),
    "dead ls": (
        ("id", "stream", "subject", "reason", "attempts", "replayed"),
        {
            "id": 1234,
            "stream": "LINEAGE",
            "subject": f"lineage.{RUN}.segment.{TREE[:16]}",
            "reason": REASON,
            "attempts": 5,
            "replayed": False,
        },
    ),
    "lineage": (
        ("id", "kind", "tokens", "finish", "policy", "text"),
        {
            "id": TREE[:16],
            "kind": "POLICY",
            "tokens": 128,
            "finish": "BOUNDARY",
            "policy": "step 16 (epoch 1, a5658eba3c79)",
            "text": "so the answer is " * 8,
        },
    ),
    "lineage scores": (
        ("segment", "scorer", "state", "value", "reason"),
        {
            "segment": TREE[:16],
            "scorer": "rewards:reward",
            "state": "UNSCORABLE",
            "value": None,
            "reason": REASON,
        },
    ),
    "ps": (
        ("service", "pid", "state", "run"),
        {"service": "rollout-0", "pid": 4_194_304, "state": "serving", "run": RUN},
    ),
    "nodes of runs show": (
        ("node", "host", "joined", "present", "seen", "trees"),
        {
            "node": "joined-0123456789ab",
            "host": "a-long-name-of-a-machine.example.org",
            "joined": True,
            "present": False,
            "seen": "2026-11-29T11:17:22+00:00",
            "trees": 351,
        },
    ),
    "score": (
        ("completion", "scorer", "value", "parts", "reason", "seconds", "version"),
        {
            "completion": 1,
            "scorer": "json-schema",
            "value": 0.25,
            "parts": {"valid": 1.0, "fields": 0.25},
            "reason": REASON,
            "seconds": 0.0188,
            "version": "83f256c2632b",
        },
    ),
}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let output be as on a terminal of 80 columns."""
    for each in (console.out, console.err):
        monkeypatch.setattr(each, "_width", 80)


def widest(text: str) -> int:
    return max(map(cell_len, text.splitlines()))


@pytest.mark.parametrize("name", ROWS)
def test_a_table_fits_and_keeps_its_ids_and_every_word(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    columns, row = ROWS[name]
    empty = {**row, **{key: None for key in ("reason", "cause", "why") if key in row}}
    console.emit([row, empty], False, columns)
    text = capsys.readouterr().out
    assert widest(text) <= 80 and "…" not in text
    ids = [str(row[key]) for key in row if key in ("id", "pid", "row") or key.endswith("_id")]
    assert all(each in text for each in ids)
    words = f"{row.get('reason', '')} {row.get('cause', '')} {row.get('why', '')}".split()
    assert [word for word in words if word not in text] == []


def test_ids_of_trees_stay_whole_where_all_columns_are_short(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns, row = ROWS["trees ls"]
    console.emit([{**row, "label": "", "reason": None}] * 20, False, columns)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 22 and lines[2].startswith(f"{TREE[:16]}  CONSUMED"), lines[:3]


def test_where_nothing_fits_each_row_is_a_block(capsys: pytest.CaptureFixture[str]) -> None:
    columns, row = ROWS["runs groups"]
    console.emit([row, row], False, columns)
    text = capsys.readouterr().out
    assert "max new tokens  24" in text and "why             predicted difficulty" in text


def test_recipes_fit_a_screen_and_those_of_a_kind_are_described_whole() -> None:
    text = banyan("recipes", "ls").stdout
    assert widest(text) <= 80 and len(text.splitlines()) <= 22, text
    for row in json.loads(banyan("recipes", "ls", "--json").stdout):
        assert row["name"] in text, row
    for kind in ("trees", "updates"):
        text = banyan("recipes", "ls", kind).stdout
        assert widest(text) <= 80, text
        for row in json.loads(banyan("recipes", "ls", kind, "--json").stdout):
            assert not {*row["description"].split()} - {*text.split()}, row


def test_keys_of_recipes_are_whole() -> None:
    text = banyan("recipes", "keys").stdout
    assert widest(text) <= 80
    keys = [row["key"] for row in json.loads(banyan("recipes", "keys", "--json").stdout)]
    assert [key for key in keys if key not in text] == []


def test_the_machines_checks_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_checks", lambda *_: [("sandbox", True, REASON), ("disk", 1, "")])
    text = banyan("doctor").stdout
    assert widest(text) <= 80 and text.startswith("check    ok    detail")


def test_processes_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "_alive", lambda pid: True)
    _, row = ROWS["ps"]
    (tmp_path / "processes.json").write_text(json.dumps([row]))
    text = banyan("ps", "--state", tmp_path).stdout
    assert widest(text) <= 80 and RUN in text


def test_words_are_folded_between_them_and_paths_stay_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = "/a/" + "long" * 25
    console.emit({"cause": f"{'word ' * 20}{path}"}, False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == path and widest("\n".join(lines[:-1])) <= 80
    assert lines[0].startswith("cause: word") and lines[0].endswith("word")


def test_help_is_folded_for_the_terminal_not_for_the_editor() -> None:
    helps = [command.help or "" for command in app.registered_commands]
    assert all(helps)
    assert [text for text in helps for part in text.split("\n\n") if "\n" in part] == []
