"""Commands as a person types them: what they print, their exit status, and one clear message for bad input."""

import json
import os
import socket
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.command import ROOT, Said, banyan, process
from tests.cli.folders import safetensors, whole_model

QUICKSTART = ROOT / "recipes" / "quickstart.yaml"


def refused(result: Said[str], *words: str) -> None:
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr and result.stderr.count("error:") == 1
    message = " ".join(result.stderr.split())
    for word in words:
        assert word in message, message


def test_recipes_are_listed_and_shown() -> None:
    rows = json.loads(banyan("recipes", "ls", "--json").stdout)
    assert "quickstart" in {row["name"] for row in rows}
    assert (
        yaml.safe_load(banyan("recipes", "show", "quickstart").stdout)["optimise"]["advantage"]
        == "grpo"
    )


def test_dry_run_prints_the_resolved_recipe() -> None:
    result = banyan("train", QUICKSTART, "--dry-run", "--set", "budget.steps=3")
    shown = yaml.safe_load(result.stdout)
    assert shown["budget"]["steps"] == 3 and shown["control"]["max_staleness"] == 0


def test_dry_run_prints_json_for_programs() -> None:
    shown = json.loads(
        process("train", QUICKSTART, "--dry-run", "--json", "--set", "budget.steps=3").stdout
    )
    assert shown["budget"]["steps"] == 3 and shown["name"] == "quickstart"


def test_dry_run_refuses_an_address_that_is_none() -> None:
    refused(
        banyan("train", QUICKSTART, "--dry-run", "--listen", "nowhere"),
        "--listen 'nowhere' must be host:port",
    )


def test_an_engine_that_is_not_installed_is_said_before_anything_starts(tmp_path: Path) -> None:
    for more in (["--dry-run"], ["--state", str(tmp_path / "state")]):
        said = banyan("train", QUICKSTART, "--set", "resources.engine=vllm", *more)
        assert (
            said.returncode == 1 and "make vllm" in said.stderr and "Traceback" not in said.stderr
        ), said.stderr
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
    said = banyan("train", QUICKSTART, "--dry-run", "--set", "optimise.loss_settings.entropy=x")
    refused(said, "entropy must be a finite number, got 'x'")


def test_the_version_is_printed() -> None:
    assert process("--version").stdout.split() == ["banyan", version("banyan")]


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


def own_reward(folder: Path, module: str, reward: str = "own_rewards:f", **more: Any) -> Path:
    (folder / "own_rewards.py").write_text(module)
    (folder / "rows.jsonl").write_text('{"prompt": "1 + 1", "answer": 2}\n')
    task = {"name": "file", "path": "rows.jsonl", "reward": reward}
    recipe = {
        "name": "x",
        "model": "m/m",
        "task": task,
        "resources": {"engine": "scripted"},
        **more,
    }
    (folder / "r.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "r.yaml"


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
        ("f = 3\n", "own_rewards:f", ["not a function"]),
        ("async def f(completion, **row):\n    return 1.0\n", "own_rewards:f", ["plain function"]),
        ("raise RuntimeError('no key')\n", "own_rewards:f", ["RuntimeError: no key"]),
        ("import os\nos._exit(3)\n", "own_rewards:f", ["status 3"]),
    ],
)
def test_a_reward_function_that_cannot_be_used_is_refused(
    tmp_path: Path, module: str, reward: str, words: list
) -> None:
    refused(banyan("train", own_reward(tmp_path, module, reward), "--dry-run"), reward, *words)


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
        "simulate", QUICKSTART, "--json", *(part for a in arguments for part in ("--set", a))
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen["leaves"] == 16 and 0 < seen["sampled_tokens"] < seen["iid_tokens"]
    assert seen["saved"] == pytest.approx(1 - seen["sampled_tokens"] / seen["iid_tokens"])
    assert (
        seen["control"]["groups_trained"] == 96
        and "nothing is learnt" in seen["control"]["not_simulated"]
    )
    assert "control.not_simulated: " in banyan("simulate", QUICKSTART).stdout


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
        (["train", QUICKSTART, "--set", "budgets.steps=1"], ["budgets", "unknown key"]),
        (["train", QUICKSTART, "--set", "budget.steps=x"], ["budget.steps", "'x'", "integer"]),
        (["train", QUICKSTART, "--set", "model=/nowhere"], ["/nowhere", "local folder"]),
        (
            ["train", QUICKSTART, "--set", "generate.policy=magic"],
            ["magic", "known: ", "iid, ", "treepo"],
        ),
        (["train"], ["name a recipe"]),
        (["train", "--resume", QUICKSTART], ["--resume"]),
        (["lineage", "xyz"], ["holds no store"]),
        (["join", "127.0.0.1:1"], ["--token"]),
        (["train", QUICKSTART, "--json"], ["--json goes with --dry-run"]),
        (["train", "--run", "x", QUICKSTART], ["leave recipe and --set out"]),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, arguments: list, words: list[str]) -> None:
    refused(banyan(*arguments, BANYAN_STATE=str(tmp_path / "s")), *words)


def test_a_model_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"model_type": "llama"}')
    refused(
        banyan("train", QUICKSTART, "--set", f"model={tmp_path / 'm'}", "--state", tmp_path / "s"),
        "no weights",
    )


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (
            "model.safetensors",
            safetensors()[:-1],
            ["model.safetensors is cut off", "bytes instead of"],
        ),
        (
            "model.safetensors",
            b"garbage garbage garbage",
            ["model.safetensors is no safetensors file"],
        ),
        ("config.json", b"{oops", ["config.json is not JSON"]),
        ("config.json", b"{}", ["config.json names no model_type"]),
        ("tokenizer.json", None, ["has no tokenizer"]),
        ("tokenizer.json", b"{", ["tokenizer.json is not JSON"]),
    ],
)
def test_a_broken_model_folder_is_said_with_its_file_before_anything_starts(
    tmp_path: Path, file: str, content: bytes | None, words: list[str]
) -> None:
    path = Path(whole_model(tmp_path)) / file
    path.unlink() if content is None else path.write_bytes(content)
    arguments = ["--set", f"model={path.parent}", "--state", tmp_path / "s"]
    refused(banyan("train", QUICKSTART, *arguments), str(path.parent), *words)
    assert not (tmp_path / "s").exists()


def test_a_model_that_is_not_there_is_said_before_anything_starts_whatever_the_engine(
    tmp_path: Path,
) -> None:
    arguments = [
        "--set",
        "model=/nowhere",
        "--set",
        "resources.engine=scripted",
        "--state",
        tmp_path / "s",
    ]
    refused(banyan("train", QUICKSTART, *arguments), "/nowhere", "local folder")
    assert not (tmp_path / "s").exists()


def test_an_unknown_key_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("name: x\nmodel: m\nbugdet: 3\ntask: {name: arithmetic}\n")
    refused(
        banyan("train", tmp_path / "r.yaml", "--state", tmp_path / "s"),
        "r.yaml, line 3",
        "bugdet: unknown key",
    )
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"prompt": 7}', ["line 2", "'prompt' is 7"]),
        ("{oops", ["line 2 is not JSON", "{oops"]),
        ("[1]", ["line 2", "[1]"]),
    ],
)
def test_a_row_that_cannot_be_read_is_named_and_no_run_is_begun(
    tmp_path: Path, row: str, words: list[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text(f'{{"prompt": "1 + 1"}}\n{row}\n')
    (tmp_path / "m_rewards.py").write_text("def f(completion, **row):\n    return 1.0\n")
    task = {"name": "file", "path": "rows.jsonl", "reward": "m_rewards:f"}
    recipe = {
        "name": "x",
        "model": whole_model(tmp_path),
        "task": task,
        "resources": {"engine": "scripted"},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    refused(banyan("train", tmp_path / "r.yaml", "--state", tmp_path / "s"), "rows.jsonl", *words)
    assert json.loads(banyan("runs", "ls", "--json", "--state", tmp_path / "s").stdout) == []
    assert json.loads(banyan("ps", "--json", "--state", tmp_path / "s").stdout) == []


def test_a_full_disk_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", tmp_path / "disk"]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root, and a container that may")
    try:
        arguments = ["--set", f"model={whole_model(tmp_path)}", "--state", tmp_path / "disk" / "s"]
        refused(banyan("train", QUICKSTART, *arguments), "MiB free", "--state")
    finally:
        subprocess.run(["umount", "-l", tmp_path / "disk"], check=True)


def test_a_state_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    from services.supervisor.state import StateFolder

    held = StateFolder.open(tmp_path / "s")
    held.lock()
    try:
        result = process(
            "train",
            QUICKSTART,
            "--set",
            f"model={whole_model(tmp_path)}",
            "--state",
            tmp_path / "s",
        )
    finally:
        held.unlock()
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"in use by process {os.getpid()}" in result.stderr and "--state" in result.stderr


def test_a_task_file_that_is_not_there(tmp_path: Path) -> None:
    recipe = {
        "name": "x",
        "model": "SmolLM2-135M-Instruct",
        "task": {"name": "file", "path": "rows.jsonl", "reward": "m:f"},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    refused(
        banyan("train", tmp_path / "r.yaml", "--state", tmp_path / "s"), "task.path", "rows.jsonl"
    )


def test_a_join_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        result = banyan("train", QUICKSTART, "--listen", listen, "--state", tmp_path / "s")
    assert result.returncode in (1, 2) and "Traceback" not in result.stderr
    assert listen in result.stderr and "in use" in result.stderr, result.stderr
