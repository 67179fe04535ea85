"""Commands that read a run that is over, on a real one: a few steps on the scripted engine."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli import command
from tests.cli.command import Said
from tests.faults.harness import recipe, tiny_model

pytestmark = pytest.mark.slow  # a whole run


def banyan(state: Path, *arguments: str | Path) -> Said[str]:
    return command.banyan(*arguments, "--state", state)


def result(state: Path, *arguments: str | Path) -> Any:
    output = banyan(state, *arguments, "--json")
    assert output.returncode == 0, output.stderr
    return json.loads(output.stdout)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    data = recipe(tiny_model(folder / "model"), budget__steps=2, generate__trees=2)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(data))
    done = command.process("train", folder / "recipe.yaml", "--state", folder / "state")
    assert done.returncode == 0 and "SUCCEEDED at step 2" in done.stdout, done.stdout + done.stderr
    return folder / "state"


@pytest.fixture(scope="module")
def run_id(state: Path) -> str:
    (run,) = result(state, "runs", "ls")
    return str(run["run_id"])


@pytest.fixture(scope="module")
def exported(state: Path, run_id: str) -> list[dict[str, Any]]:
    output = banyan(state, "trees", "export", run_id)
    return [json.loads(line) for line in output.stdout.splitlines()]


def test_a_segments_whole_life(state: Path, exported: list[dict[str, Any]]) -> None:
    tree = next(t for t in exported if "/train/" in t["group_id"])
    leaf = next(n for n in tree["nodes"] if n["reward"] is not None)
    life = result(state, "lineage", leaf["id"])
    assert [s["id"] for s in life["ancestors"]] == [tree["nodes"][0]["id"], leaf["id"]]
    assert [s["value"] for s in life["scores"]] == [leaf["reward"]]
    (batch,) = life["batches"]
    assert batch["policy"]["step"] == batch["ordinal"] + 1
    shown = banyan(state, "lineage", leaf["id"][:16]).stdout
    assert f"which made policy step {batch['policy']['step']}" in shown and leaf["id"][:16] in shown
    other = format(int(leaf["id"][10], 16) ^ 1, "x")
    wrong = banyan(
        state, "lineage", leaf["id"][:10] + other
    )  # an odd number of digits, the last one wrong
    assert wrong.returncode == 1 and "there is no segment" in wrong.stderr


def test_a_tree_is_shown_with_the_advantages_of_its_whole_group(
    state: Path, exported: list[dict[str, Any]]
) -> None:
    tree = next(
        t
        for t in exported
        if "/train/" in t["group_id"] and len({n["reward"] for n in t["nodes"]}) > 2
    )
    assert result(state, "trees", "show", tree["tree_id"])["tree_id"] == tree["tree_id"]
    members = [t for t in exported if t["group_id"] == tree["group_id"]]
    rewards = [n["reward"] for t in members for n in t["nodes"] if n["reward"] is not None]
    assert len(members) == 2 and len(rewards) == 8
    mean = sum(rewards) / 8
    deviation = (
        sum((r - mean) ** 2 for r in rewards) / 7
    ) ** 0.5  # of a sample, as the estimator takes it
    shown = banyan(state, "trees", "show", tree["tree_id"][:16]).stdout
    for reward in {n["reward"] for n in tree["nodes"] if n["reward"] is not None}:
        wanted = (reward - mean) / deviation
        outcome = {
            float(line.rsplit(" ", 1)[1])
            for line in shown.splitlines()
            if f"reward {reward:g}" in line
        }
        assert outcome and all(abs(value - wanted) < 0.002 for value in outcome), (wanted, shown)


def test_the_plans_that_grew_a_tree_are_shown(state: Path, exported: list[dict[str, Any]]) -> None:
    tree = exported[0]
    lines = banyan(state, "trees", "show", tree["tree_id"][:16], "--plans").stdout.splitlines()
    plans = [json.loads(line) for line in lines]
    assert [plan["number"] for plan in plans] == list(range(len(plans))) and plans[-1]["done"]
    grown = {node["id"] for node in tree["nodes"]}
    assert {segment for plan in plans for segment in plan["segments"]} == grown


def test_a_run_is_exported_whole(
    state: Path, run_id: str, tmp_path: Path, exported: list[dict[str, Any]]
) -> None:
    output = result(state, "export", run_id, "--to", tmp_path / "out")
    assert output["trees"] == len(exported) and output["checkpoint"].startswith("step-00000002")
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert {str(p.dtype) for p in loaded.parameters()} == {"torch.float32"}, (
        "the masters are, and are not rounded"
    )
    bracketed = banyan(state, "export", run_id, "--to", tmp_path / "out[/b]")
    assert bracketed.returncode == 0 and bracketed.stdout.endswith("out[/b]\n")
    repeated = banyan(state, "export", run_id, "--to", tmp_path / "out")
    assert repeated.returncode == 2 and "not empty" in repeated.stderr
    (tmp_path / "file").write_text("")
    onto = banyan(state, "export", run_id, "--to", tmp_path / "file")
    assert onto.returncode == 2 and "not a folder" in onto.stderr and "Traceback" not in onto.stderr


def test_trees_of_evaluations_are_listed_on_request(
    state: Path, run_id: str, exported: list[dict[str, Any]]
) -> None:
    trained = {tree["tree_id"] for tree in exported if "/train/" in tree["group_id"]}
    everything = {tree["tree_id"] for tree in exported}
    assert trained < everything
    listed, more = (
        {row["tree_id"] for row in result(state, "trees", "ls", run_id, "--limit", "999", *flag)}
        for flag in ((), ("--eval",))
    )
    assert (listed, more) == (trained, everything)
    used = [
        {row["tree_id"] for row in result(state, "trees", "ls", run_id, "--step", step)}
        for step in ("1", "2", "3")
    ]
    assert used[0] and used[1] and not used[0] & used[1] and not used[2]
    assert used[0] | used[1] <= trained
    lost = banyan(state, "trees", "ls", "--step", "1")
    assert lost.returncode == 2 and "--step 1 is of no run" in lost.stderr


def test_what_is_not_there_is_said(state: Path) -> None:
    assert result(state, "dead", "ls") == [] and banyan(state, "dead", "ls").stdout == "none\n"
    replay = banyan(state, "dead", "replay", "1", "--json")
    assert replay.returncode == 2 and "nothing runs" in replay.stderr
    missing = banyan(state, "trees", "ls", "nope")
    assert missing.returncode == 1 and "there is no run 'nope'" in missing.stderr


def test_a_uniform_run_has_nothing_to_explain(state: Path, run_id: str) -> None:
    assert result(state, "runs", "groups", run_id) == []
    assert "follows from the seed" in banyan(state, "runs", "groups", run_id).stdout
