"""A model card says where a model is from; an upload holds model and card, and nothing said."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from banyan.cli.export.model_card import Card, card, lineage_digest
from banyan.digest import blake
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from tests.cli.command import ROOT, banyan
from tests.cli.export.upload_hub import TOKEN, UploadHub, serving
from tests.cli.refusals import refused

PUSH = """
import sys
from pathlib import Path
from banyan.cli.export.push import push
from banyan.errors import BanyanError
import banyan.cli.export.push
banyan.cli.export.push._ANSWER_S = 2.0
try:
    print(push(Path(sys.argv[1]), sys.argv[2], private=sys.argv[3] == "private"))
except BanyanError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def stored(step: int, digest: bytes, abandoned: bool = False) -> rs.StoredPolicy:
    policy = tree_pb2.PolicyRef(step=step, digest=digest)
    return rs.StoredPolicy(published=events_pb2.PolicyPublished(policy=policy), abandoned=abandoned)


def test_the_lineage_is_of_all_policies_in_the_order_of_their_steps() -> None:
    zero, one, two = b"2" * 32, b"0" * 32, b"1" * 32
    whole = [stored(0, zero), stored(1, one), stored(2, two)]
    assert lineage_digest(whole) == blake(zero, one, two).hex()
    assert lineage_digest(reversed(whole)) == lineage_digest(whole)
    assert lineage_digest([*whole, stored(1, b"x" * 32, True)]) == lineage_digest(whole)
    assert lineage_digest(whole[:2]) != lineage_digest(whole)


def facts(model: str = "Qwen/Qwen2.5-0.5B", name: str = "sums", kind: str = "model") -> Card:
    recipe = {
        "name": name,
        "model": model,
        "task": {"path": "rows|x.jsonl"},
        "filter": [{"settings": {"api_key": "sk-secret"}}],
    }
    measured = {"done": 10, "groups": 10, "scored": 10}
    progress = rs.ReadProgressResponse(
        evals=[
            rs.EvalProgress(label="after-greedy", correct=9, reward_sum=9, **measured),
            rs.EvalProgress(label="before-greedy", correct=2, reward_sum=2, **measured),
            rs.EvalProgress(label="step-5-greedy", correct=5, reward_sum=5, **measured),
        ],
        samples=rs.SampleCounts(sampled_tokens=1234, path_tokens=2000),
    )
    run = rs.Run(
        run_id="sums-1",
        recipe_json=json.dumps(recipe),
        step=7,
        state=rs.RUN_STATE_SUCCEEDED,
        split_digest=b"s" * 32,
    )
    return Card(run=run, progress=progress, kind=kind, version="0.1.0", lineage="ab" * 32)


def test_a_card_says_from_what_how_good_and_by_which_lineage() -> None:
    text = card(facts())
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["base_model"] == "Qwen/Qwen2.5-0.5B" and front["library_name"] == "transformers"
    rows = [line for line in text.splitlines() if line.startswith(("| before", "| after"))]
    assert rows == [
        "| before, greedy | 10 | 20.0 % | 5.7 – 51.0 |",
        "| after, greedy | 10 | 90.0 % | 59.6 – 98.2 |",
    ]
    for part in ("73" * 32, "ab" * 32, "1,234", "`sums-1`", "7 steps, state SUCCEEDED"):
        assert part in text, part
    assert "sk-secret" not in text and "(hidden)" in text


def test_no_name_breaks_a_cards_tables_or_its_code() -> None:
    text = card(facts(model="/home/me/model", name="a\n# b | ``` <script>\x1b[2K"))
    assert "base_model" not in text and "/home/me" not in text and "`…/model`" in text
    assert "# a # b \\| ``` &lt;script>" in text and "\x1b" not in text
    assert text.count("```") == 3, "the name's, and the two of the recipe's block"
    assert "`rows\\|x.jsonl`" in text
    assert yaml.safe_load(card(facts(kind="adapter")).split("---\n")[1])["library_name"] == "peft"


@pytest.fixture
def hub() -> Iterator[UploadHub]:
    with serving() as served:
        yield served


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    for name in ("model.safetensors", "config.json", "README.md", "trees.jsonl", "run.json"):
        (tmp_path / name).write_text(name)
    return tmp_path


def push(
    hub: UploadHub, folder: Path, name: str = "me/sums", who: str = "private", token: str = TOKEN
) -> subprocess.CompletedProcess[str]:
    """Push in a process of its own: the hub's client reads its settings once."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": hub.address,
        "HF_TOKEN": token,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(folder / ".hf"),
    }
    command = [sys.executable, "-c", PUSH, str(folder), name, who]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_model_and_card_are_uploaded_and_what_was_said_stays(
    hub: UploadHub, exported: Path
) -> None:
    done = push(hub, exported)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.address}/me/sums"
    assert set(hub.files["me/sums"]) == {"model.safetensors", "config.json", "README.md"}
    assert hub.files["me/sums"]["config.json"] == b"config.json"
    assert hub.private == {"me/sums": True}
    assert push(hub, exported, "me/open", "public").returncode == 0
    assert hub.private["me/open"] is False
    assert push(hub, exported, "me/sums", "public").returncode == 0
    assert hub.private["me/sums"] is True, "a repository that is there stays as it is"


@pytest.mark.parametrize(
    ("name", "token", "broken", "said"),
    [
        ("me/sums", "hf_wrong", False, "InvalidInput: the hub refuses me/sums (401)"),
        ("a/b/c", TOKEN, False, "InvalidInput: --push 'a/b/c'"),
        ("me/sums", TOKEN, True, "TemporaryError: the hub failed on me/sums (500)"),
    ],
)
def test_what_the_hub_refuses_is_said_with_a_remedy(
    hub: UploadHub, exported: Path, name: str, token: str, broken: bool, said: str
) -> None:
    hub.broken = broken
    done = push(hub, exported, name, token=token)
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not any(hub.files.values())


def test_a_hub_that_is_not_there_is_named_as_such(exported: Path) -> None:
    done = push(UploadHub(address="http://127.0.0.1:9"), exported)
    assert done.returncode == 1 and "TemporaryError: the hub does not answer" in done.stderr
    assert "HF_ENDPOINT" in done.stderr and "Traceback" not in done.stderr
    later = f"`hf upload me/sums {exported} . --exclude trees.jsonl --exclude run.json`"
    assert later in done.stderr, "what was said stays here then, too"


def test_a_hub_that_never_answers_is_not_waited_for_without_an_end(exported: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = push(UploadHub(address=address), exported)
    assert done.returncode == 1 and "TemporaryError: the hub does not answer" in done.stderr
    assert TOKEN not in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_a_name_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    refused(banyan("export", "x", "--to", tmp_path / "to", "--push", "a/b/c"), "--push 'a/b/c'")
    assert not (tmp_path / "to").exists()
