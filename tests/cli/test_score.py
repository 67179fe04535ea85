"""`banyan score`: a reward is debugged without a model."""

import json
from pathlib import Path

import pytest

from tests.cli.command import banyan
from tests.cli.refusals import ARITHMETIC, refused
from tests.cli.test_commands import own_reward

OWN = """
from banyan.plugins import Scored
def f(completion, answer, **row):
    print("looking at", completion)
    return Scored(float(completion), {"length": 3.0})
def trl(prompts, completions, **kwargs):
    return [float(str(a) in c) for c, a in zip(completions, kwargs["answer"], strict=True)]
"""


def scored(*arguments: str | Path, status: int = 0) -> dict:
    result = banyan("score", *arguments, "--json")
    assert result.returncode == status, result.stderr
    return json.loads(result.stdout)


def test_a_completion_is_scored_on_a_row_by_number_and_by_id() -> None:
    first = scored(ARITHMETIC, "--completion", "It is 2")
    assert first["row"] == 0 and first["fields"]["question"] == "1 + 1"
    (completion,) = first["completions"]
    assert completion["reward"] == 1.0
    (score,) = completion["scores"]
    assert (score["scorer"], score["value"], score["reason"]) == ("number", 1.0, "")
    assert score["version"] and 0 <= score["seconds"] < 1
    again = scored(ARITHMETIC, "--completion", "3", "--row", first["id"][:8])
    assert again["id"] == first["id"] and again["completions"][0]["reward"] == 0.0
    assert scored(ARITHMETIC, "--completion", "3", "--row", "1")["completions"][0]["reward"] == 1.0


def test_a_table_for_people(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("1\n2")
    result = banyan("score", ARITHMETIC, "--completion-file", tmp_path / "text")
    assert result.returncode == 0, result.stderr
    assert "row 0 (" in result.stdout and "number" in result.stdout
    assert result.stdout.splitlines()[-1] == "reward: 1"


def test_a_users_function_with_parts_prints_and_its_failure(tmp_path: Path) -> None:
    file = own_reward(tmp_path, OWN)
    good = banyan("score", file, "--completion", "0.5")
    assert good.returncode == 0 and "reward: 0.5" in good.stdout and '"length": 3.0' in good.stdout
    assert "printed 'looking at 0.5" in good.stderr
    failed = scored(file, "--completion", "x", status=1)["completions"][0]
    assert failed["reward"] is None
    assert "ValueError: could not convert string to float" in failed["scores"][0]["reason"]


def test_a_reward_that_hangs_is_told_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANYAN_SCORE_TIMEOUT_S", "1")
    file = own_reward(tmp_path, "def f(completion, **row):\n    while True:\n        pass\n")
    (completion,) = scored(file, "--completion", "x", status=1)["completions"]
    (score,) = completion["scores"]
    assert completion["reward"] is None and score["value"] is None
    assert score["reason"].startswith("TIMEOUT: no answer in 1 s")
    assert score["seconds"] >= 1


def test_several_completions_are_a_group_and_evaluations_count_apart(tmp_path: Path) -> None:
    filters = {"filter": [{"name": "own_rewards:trl", "group": True}]}
    file = own_reward(tmp_path, OWN, **filters, eval={"filter": [{"name": "own_rewards:f"}]})
    two = scored(file, "--completion", "2", "--completion", "1")["completions"]
    assert [each["reward"] for each in two] == [1.0, 0.0]
    assert [score["scorer"] for score in two[1]["scores"]] == [
        "own_rewards:trl",
        "own_rewards:f (eval)",
    ]
    assert two[1]["scores"][1]["value"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope", "--completion", "1"], ["no recipe 'nope'"]),
        ([ARITHMETIC], ["--completion-file"]),
        ([ARITHMETIC, "--completion", "1", "--row", "145"], ["145 rows", "0 to 144"]),
        ([ARITHMETIC, "--completion", "1", "--row", "-1"], ["--row -1"]),
        ([ARITHMETIC, "--completion", "1", "--row", "abcdefabcdef"], ["no", "such an id"]),
        ([ARITHMETIC, "--completion", "1", "--set", "filter.0.name=nope"], ["nope"]),
    ],
)
def test_bad_input_is_one_message(arguments: list, words: list[str]) -> None:
    refused(banyan("score", *arguments), *words)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    missing = banyan("score", ARITHMETIC, "--completion-file", tmp_path / "nope")
    assert missing.returncode == 1 and "No such file" in missing.stderr
    (tmp_path / "bytes").write_bytes(b"\xff")
    refused(banyan("score", ARITHMETIC, "--completion-file", tmp_path / "bytes"), "no UTF-8 text")
