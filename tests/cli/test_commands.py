"""Commands as a person types them: their output, exit status, and one clear message for bad
input."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.command import banyan, process
from tests.cli.refusals import ARITHMETIC, own_reward, refused


def test_recipes_are_listed_and_shown() -> None:
    rows = json.loads(banyan("recipes", "ls", "--json").stdout)
    assert "quickstart" in {row["name"] for row in rows}
    assert (
        yaml.safe_load(banyan("recipes", "show", "quickstart").stdout)["optimise"]["advantage"]
        == "rose"
    )


def test_dry_run_prints_the_resolved_recipe() -> None:
    result = banyan("train", ARITHMETIC, "--dry-run", "--set", "budget.steps=3")
    shown = yaml.safe_load(result.stdout)
    assert shown["budget"]["steps"] == 3 and shown["control"]["max_staleness"] == 0


def test_dry_run_prints_json_for_programs() -> None:
    shown = json.loads(
        process("train", ARITHMETIC, "--dry-run", "--json", "--set", "budget.steps=3").stdout
    )
    assert shown["budget"]["steps"] == 3 and shown["name"] == "arithmetic"


def test_dry_run_refuses_an_address_that_is_none() -> None:
    refused(
        banyan("train", ARITHMETIC, "--dry-run", "--listen", "nowhere"),
        "--listen 'nowhere' must be host:port",
    )


def test_an_engine_that_is_not_installed_is_said_before_anything_starts(tmp_path: Path) -> None:
    for more in (["--dry-run"], ["--state", str(tmp_path / "state")]):
        output = banyan("train", ARITHMETIC, "--set", "resources.engine=vllm", *more)
        assert (
            output.returncode == 1
            and "make vllm" in output.stderr
            and "Traceback" not in output.stderr
        ), output.stderr
    assert not (tmp_path / "state").exists()


def test_nothing_is_started_to_resume_nothing(tmp_path: Path) -> None:
    refused(
        banyan("train", "--resume", "--state", str(tmp_path / "state")),
        "there is no run to resume",
        "train RECIPE",
    )
    named = banyan("train", "--resume", "--run", "long-9", "--state", str(tmp_path / "state"))
    refused(
        named,
        "--run 'long-9'",
        "there is no run to resume",
        str(tmp_path / "state"),
        "--state",
        "train RECIPE",
    )
    refused(
        banyan("train", "quikstart"), "there is no recipe 'quikstart'; did you mean quickstart?"
    )
    refused(
        banyan("train", "quickstart.yaml"), "there is no file", "did you mean quickstart, which is"
    )
    assert not (tmp_path / "state").exists()


def test_a_file_that_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_text("garbage " * 1000)
    refused(
        process("runs", "ls", "--state", str(tmp_path)),
        str(tmp_path / "store.sqlite"),
        "no store that can be read",
    )


def test_doctor_tries_whether_the_folder_can_be_written() -> None:
    rows = {
        row["check"]: row
        for row in json.loads(banyan("doctor", "--state", "/proc/nowhere", "--json").stdout)
    }
    assert not rows["disk"]["ok"] and "/proc" in rows["disk"]["detail"]


def test_settings_that_a_loss_has_not_are_refused_before_a_run_is_begun() -> None:
    output = banyan("train", ARITHMETIC, "--dry-run", "--set", "optimise.loss_settings.entropy=x")
    refused(output, "entropy must be a finite number, got 'x'")


def test_the_version_is_printed() -> None:
    assert process("--version").stdout.split() == ["banyan", version("banyan-rl")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["trees", "ls", "--limit", "-1"],
        ["trees", "ls", "--limit", "0"],
        ["trees", "export", "r", "--limit", "-1"],
        ["dead", "ls", "--limit", "-1"],
        ["dead", "replay", "0"],
        ["join", "h:1", "--threads", "-1"],
    ],
)
def test_numbers_out_of_their_range_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    result = banyan(*arguments, BANYAN_STATE=str(tmp_path))
    assert (
        result.returncode == 2
        and "Invalid value" in result.stderr
        and "Traceback" not in result.stderr
    ), result.stderr


@pytest.mark.parametrize(
    ("module", "reward", "words"),
    [
        ("", "no_such_module:f", ["no_such_module", "PYTHONPATH"]),
        ("def g(completion): ...\n", "own_rewards:f", ["no attribute 'f'"]),
        (
            "def f(completion, prompt):\n    return 1.0\n",
            "own_rewards:f",
            ["prompt, answer", "def reward("],
        ),
        (
            "def f(prompts, completions, **kwargs):\n    return [1.0]\n",
            "own_rewards:f",
            ["`group: true`"],
        ),
        (
            "def f(completion, **row):\n    return float(completion)\n",
            "own_rewards:f",
            ["ValueError", "'The answer is 42.'", "banyan score"],
        ),
        ("f = 3\n", "own_rewards:f", ["not a function"]),
        ("def f(completion, **row):\n    yield 1.0\n", "own_rewards:f", ["is a generator"]),
        ("raise RuntimeError('no key')\n", "own_rewards:f", ["RuntimeError: no key"]),
        ("import os\nos._exit(3)\n", "own_rewards:f", ["status 3"]),
    ],
)
def test_a_reward_function_that_cannot_be_used_is_refused(
    tmp_path: Path, module: str, reward: str, words: list
) -> None:
    refused(banyan("train", own_reward(tmp_path, module, reward), "--dry-run"), reward, *words)


@pytest.mark.parametrize(
    ("scorer", "words"),
    [
        (
            {"name": "number", "settings": {"answer": "solution"}},
            "field 'solution' of the row is missing",
        ),
        ({"name": "code"}, "the row's tests must be a list"),
        (
            {
                "name": "judge",
                "network": True,
                "settings": {
                    "base_url": "http://127.0.0.1:9/v1",
                    "model": "m",
                    "rubric": "{question} {completion}",
                },
            },
            "names 'question', which the row lacks",
        ),
    ],
)
def test_rows_that_a_scorer_of_banyans_can_never_score_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scorer: dict[str, Any], words: str
) -> None:
    monkeypatch.setenv("BANYAN_SANDBOX_NETWORK", "1")
    recipe = own_reward(tmp_path, "", filter=[{"name": "length", "settings": {"most": 9}}, scorer])
    fields = "on the first row, whose fields are prompt, answer"
    refused(banyan("train", recipe, "--dry-run"), scorer["name"], fields, words)
    scored = own_reward(tmp_path, "", filter=[{"name": "number"}])
    assert banyan("train", scored, "--dry-run").returncode == 0


def test_tools_refuses_a_recipe_without_an_environment(tmp_path: Path) -> None:
    recipe = own_reward(tmp_path, "", filter=[{"name": "number"}])
    refused(banyan("tools", recipe), "has no environment")


def test_a_reward_function_beside_the_recipe_is_found_also_as_a_filter(tmp_path: Path) -> None:
    good = "def f(completion, answer, **row):\n    return 1.0\n"
    assert banyan("train", own_reward(tmp_path, good), "--dry-run").returncode == 0
    filters = own_reward(tmp_path, good, filter=[{"name": "own_rewards:f"}])
    result = banyan("train", filters, "--dry-run")
    assert result.returncode == 0, result.stderr


def test_plugins_beside_the_recipe_are_found(tmp_path: Path) -> None:
    code = "from methods.generate.iid import Iid\nfrom methods.control.uniform import Uniform\n"
    reward = "def f(completion, answer, **row):\n    return 1.0\n"
    own = {
        "generate": {"policy": "own_rewards:Iid"},
        "control": {"curriculum": "own_rewards:Uniform"},
    }
    file = own_reward(tmp_path, code + reward, **own)
    for command in (["train", file, "--dry-run"], ["simulate", file], ["recipes", "show", file]):
        result = process(*command)
        assert result.returncode == 0, result.stderr


def test_dry_run_reads_the_rows_and_looks_at_the_models_folder(tmp_path: Path) -> None:
    file = own_reward(tmp_path, "def f(completion, **row):\n    return 1.0\n")
    refused(
        banyan("train", file, "--dry-run", "--set", f"model={tmp_path}"),
        str(tmp_path),
        "config.json",
    )
    refused(
        banyan("train", file, "--dry-run", "--set", f"model={tmp_path / 'rows.jsonl'}"),
        "rows.jsonl' is no folder",
    )
    refused(
        banyan("train", file, "--dry-run", "--set", "model=./nowhere"), "'./nowhere' is not there"
    )
    with (tmp_path / "rows.jsonl").open("a") as rows:
        rows.write("[1, 2]\n")
    refused(banyan("train", file, "--dry-run"), "rows.jsonl line 2")


def test_a_task_path_that_is_a_folder(tmp_path: Path) -> None:
    file = own_reward(tmp_path, "def f(completion, **row): return 1.0\n")
    refused(banyan("train", file, "--dry-run", "--set", "task.path=/tmp"), "'/tmp' is a folder")


def test_simulate_prints_what_a_tree_saves() -> None:
    arguments = [
        "generate.policy=treepo",
        "generate.settings={width: 16, segment: 8, max_depth: 4}",
        "generate.max_new_tokens=32",
    ]
    result = banyan(
        "simulate", ARITHMETIC, "--json", *(part for a in arguments for part in ("--set", a))
    )
    assert result.returncode == 0, result.stderr
    observed = json.loads(result.stdout)
    assert observed["leaves"] == 16 and 0 < observed["sampled_tokens"] < observed["iid_tokens"]
    assert observed["saved"] == pytest.approx(
        1 - observed["sampled_tokens"] / observed["iid_tokens"]
    )
    assert (
        observed["control"]["groups_trained"] == 96
        and "nothing is learnt" in observed["control"]["not_simulated"]
    )
    assert observed["verdict"] == []
    (note,) = observed["notes"]
    assert note.startswith("optimise.advantage grpo gives credit per leaf")
    printed = banyan("simulate", ARITHMETIC).stdout
    assert "control.not_simulated: " in printed
    assert "verdict" not in printed and "note:" not in printed


def test_simulate_says_when_a_tree_cannot_pay() -> None:
    arguments = [
        "generate.policy=treepo",
        "generate.settings={width: 16, segment: 32}",
        "generate.max_new_tokens=32",
    ]
    sets = [part for a in arguments for part in ("--set", a)]
    (reason,) = json.loads(banyan("simulate", ARITHMETIC, "--json", *sets).stdout)["verdict"]
    assert (reason["name"], reason["try"].split(" or ")[0]) == (
        "no-fork",
        "--set 'generate.settings.segment=8'",
    )
    assert f"verdict.no-fork: {reason['words']}" in banyan("simulate", ARITHMETIC, *sets).stdout


def test_nothing_runs_is_an_empty_list(tmp_path: Path) -> None:
    assert json.loads(banyan("ps", "--json", "--state", tmp_path / "none").stdout) == []


def test_reading_without_a_store_says_so(tmp_path: Path) -> None:
    refused(banyan("runs", "ls", "--state", tmp_path / "none"), "holds no store", "banyan train")


def test_doctor_names_every_check(tmp_path: Path) -> None:
    result = banyan("doctor", "--json", "--state", tmp_path)
    rows = json.loads(result.stdout)
    assert {row["check"] for row in rows} == {
        "python",
        "torch",
        "model",
        "nats",
        "ports",
        "sandbox",
        "jail",
        "disk",
        "cores",
    }
    bad = banyan("doctor", "--json", "--model", tmp_path)
    model = next(row for row in json.loads(bad.stdout) if row["check"] == "model")
    assert bad.returncode == 1 and not model["ok"] and "config.json" in model["detail"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nope"], ["no recipe 'nope'", "quickstart"]),
        (["train", "nope.yaml"], ["cannot read recipe nope.yaml", "No such file"]),
        (["train", ARITHMETIC, "--set", "budgets.steps=1"], ["budgets", "unknown key"]),
        (["train", ARITHMETIC, "--set", "budget.steps=x"], ["budget.steps", "'x'", "integer"]),
        (["train", ARITHMETIC, "--set", "model=/nowhere"], ["/nowhere", "local folder"]),
        (
            ["train", ARITHMETIC, "--set", "generate.policy=magic"],
            ["magic", "known: ", "iid, ", "treepo"],
        ),
        (["train"], ["name a recipe"]),
        (["train", "--resume", ARITHMETIC], ["--resume"]),
        (["lineage", "xyz"], ["holds no store"]),
        (["join", "127.0.0.1:1"], ["--token"]),
        (["train", ARITHMETIC, "--json"], ["--json goes with --dry-run"]),
        (["train", "--run", "x", ARITHMETIC], ["leave recipe and --set out"]),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, arguments: list, words: list[str]) -> None:
    refused(banyan(*arguments, BANYAN_STATE=str(tmp_path / "s")), *words)
