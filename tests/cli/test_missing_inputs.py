"""Models, rows and places that a run needs: each missing one is named before a run begins."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cli.command import banyan, process
from tests.cli.folders import safetensors, whole_model
from tests.cli.refusals import ARITHMETIC, own_reward, refused
from tests.faults.harness import tiny_model

pytestmark = pytest.mark.slow  # each case is a whole command


def test_a_model_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"model_type": "llama"}')
    refused(
        banyan("train", ARITHMETIC, "--set", f"model={tmp_path / 'm'}", "--state", tmp_path / "s"),
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
    refused(banyan("train", ARITHMETIC, *arguments), str(path.parent), *words)
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
    refused(banyan("train", ARITHMETIC, *arguments), "/nowhere", "local folder")
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
        refused(banyan("train", ARITHMETIC, *arguments), "MiB free", "--state")
    finally:
        subprocess.run(["umount", "-l", tmp_path / "disk"], check=True)


def test_a_state_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    from services.supervisor.state import StateFolder

    kept = StateFolder.open(tmp_path / "s")
    kept.lock()
    try:
        result = process(
            "train",
            ARITHMETIC,
            "--set",
            f"model={whole_model(tmp_path)}",
            "--state",
            tmp_path / "s",
        )
    finally:
        kept.unlock()
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
        result = banyan("train", ARITHMETIC, "--listen", listen, "--state", tmp_path / "s")
    assert result.returncode in (1, 2) and "Traceback" not in result.stderr
    assert listen in result.stderr and "in use" in result.stderr, result.stderr


def test_accelerators_that_are_not_there_are_missed_before_anything_starts(tmp_path: Path) -> None:
    asked = ("train", ARITHMETIC, "--set", "resources.learner_device=cuda")
    for more in (["--dry-run"], ["--state", str(tmp_path / "state")]):
        refused(
            banyan(*asked, *more, CUDA_VISIBLE_DEVICES=""),
            "PyTorch sees 0 accelerators",
            "set it to auto or cpu",
        )
    assert not (tmp_path / "state").exists()


def test_a_reward_is_tried_before_a_run_begins(tmp_path: Path) -> None:
    recipe = own_reward(tmp_path, "def f(completion, **row):\n    raise KeyError('label')\n")
    state = tmp_path / "state"
    refused(banyan("train", recipe, "--state", state), "KeyError", "banyan score")
    assert not state.exists()


def test_a_model_that_a_run_would_fetch_is_not_called_valid(tmp_path: Path) -> None:
    recipe = own_reward(tmp_path, "def f(completion, **row):\n    return 1.0\n")
    said = banyan("train", recipe, "--dry-run").stderr
    assert "its scorers are all valid" in said and "model m/m is not here" in said
    model = ["--set", f"model={tiny_model(tmp_path / 'model')}"]
    said = banyan("train", recipe, "--dry-run", *model).stderr
    assert "its scorers and its model's folder are all valid" in said and "not here" not in said
