"""`banyan doctor RUN` on tree policies: trees that share too little, and those that share enough.

On made-up figures, and on runs of the whole system with the scripted engine.
"""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from banyan.cli.doctor import diagnosed as diagnosed_module
from banyan.doctor.rule import Finding
from banyan.doctor.rules import diagnose
from banyan.doctor.stored_trees import judged_shape
from banyan.doctor.tree_rules import LEAST_TREES, GrownTree, RunTrees, told, tree_rules
from banyan.payoff.shape import Setting, Shape
from banyan.payoff.tokens import TreeTokens
from banyan.payoff.verdict import LEAST_SAVED
from banyan.v1 import runstore_service_pb2 as rs
from tests.cli import command
from tests.cli.made_series import flat, made
from tests.faults.harness import recipe, tiny_model

SHAPE = Shape(
    policy="treepo",
    width=16,
    max_new_tokens=64,
    stretch=Setting(name="segment", value=16),
)
LEAVES = 4


def run(
    saved: float, *, shape: Shape = SHAPE, trees: int = LEAST_TREES, forks: int = 0, length: int = 8
) -> RunTrees:
    """Return a run whose trees, two a group, save a share; every other one has forks."""
    paths = 1000
    newest = [
        GrownTree(
            group=f"g{index // 2}",
            step=3 + index % 4,
            lengths=(length,) * LEAVES,
            tokens=TreeTokens(
                leaves=LEAVES,
                forks=forks if index % 4 == 0 else 0,
                sampled=round(paths * (1 - saved)),
                paths=paths,
            ),
        )
        for index in range(trees)
    ]
    return RunTrees(shape=shape, newest=newest, shared=0.25)


def findings(trees: RunTrees | None, steps: int = 30) -> list[Finding]:
    return diagnose(made(steps=steps), tree_rules(trees))


@pytest.mark.parametrize(
    ("saved", "found"), [(0.35, 0), (LEAST_SAVED, 0), (LEAST_SAVED - 0.001, 1), (-0.375, 1)]
)
def test_trees_are_named_that_save_too_little(saved: float, found: int) -> None:
    assert [f.rule.name for f in findings(run(saved))] == ["trees-do-not-pay"] * found


def test_nothing_is_said_of_few_trees_few_steps_and_policies_of_other_purposes() -> None:
    assert findings(run(0.0, trees=LEAST_TREES - 1)) == []
    assert findings(run(0.0), steps=2) == []
    assert findings(None) == []
    other = Shape(policy="dars", width=8, max_new_tokens=64, judged=False)
    assert findings(run(0.0, shape=other)) == []


def test_what_trees_share_is_told_though_nothing_is_wrong() -> None:
    assert told(run(0.35, forks=3, length=18)) == (
        "the newest 12 training trees: 9 forks inside answers, trees sample 35.0% fewer tokens than"
        " independent samples of the same leaves; answers of 18 tokens: that trees pay is not shown"
        " below 48; with 18 no difference shows (docs/benchmarks/sums.md)"
    )
    other = Shape(policy="dars", width=8, max_new_tokens=64, judged=False)
    assert told(None) == told(run(0.35, shape=other)) == told(run(0.35, trees=0)) == ""


def test_a_finding_holds_the_figures() -> None:
    (finding,) = findings(run(0.02, forks=3))
    assert "sample 2.0% fewer tokens" in finding.rule.symptom
    facts = {e.metric: (e.value, e.first, e.last, e.limit) for e in finding.evidence}
    assert facts.pop("zero_variance_share")[0] == pytest.approx(0.4, rel=0.02)
    assert facts == {
        "saved_share": (pytest.approx(0.02), 3, 6, LEAST_SAVED),
        "forked_groups_share": (0.5, 3, 6, None),
        "answer_tokens_median": (8, 3, 6, 16.0),
        "shared_share": (0.25, 1, 30, None),
    }


@pytest.mark.parametrize(("length", "limit"), [(16, 16.0), (17, None)])
def test_answers_that_end_before_the_first_fork_are_told_from_longer_ones(
    length: int, limit: float | None
) -> None:
    (finding,) = findings(run(0.0, length=length))
    (median,) = [e for e in finding.evidence if e.metric == "answer_tokens_median"]
    assert median.limit == limit


@pytest.mark.parametrize(
    ("length", "sets"),
    [
        (8, ["generate.settings.segment=2", "generate.policy=iid"]),
        (3, ["generate.policy=iid"]),  # no room for four levels
        (64, ["generate.policy=iid"]),  # the segment fits already
    ],
)
def test_levers_fit_the_length_of_answers(length: int, sets: list[str]) -> None:
    (finding,) = findings(run(0.0, length=length))
    assert [lever.setting for lever in finding.rule.levers] == sets
    assert "with --set 'generate.settings={width: 16}'" in finding.rule.levers[-1].why


def test_it_comes_after_what_is_more_urgent() -> None:
    found = diagnose(made({"all_wrong_share": flat(0.7)}), tree_rules(run(0.0)))
    assert [f.rule.name for f in found] == ["too-hard", "trees-do-not-pay"]


def test_a_recipe_that_cannot_be_read_here_is_not_judged() -> None:
    base = {"name": "x", "model": "none", "task": {"name": "arithmetic"}}
    assert judged_shape("{}") is None is judged_shape("")
    assert judged_shape(json.dumps(base | {"generate": {"policy": "no_such:Policy"}})) is None
    assert judged_shape(json.dumps(base | {"generate": {"policy": "gone"}})) is None
    known = judged_shape(json.dumps(base | {"generate": {"policy": "treepo"}}))
    assert known is not None and known.judged


@pytest.mark.parametrize(("policy", "read"), [("iid", False), ("treepo", True)])
def test_trees_are_read_only_where_sharing_is_their_purpose(policy: str, read: bool) -> None:
    base = {"name": "x", "model": "none", "task": {"name": "arithmetic"}}
    client = mock.Mock(**{"trees.return_value": []})
    stored = rs.Run(run_id="r", recipe_json=json.dumps(base | {"generate": {"policy": policy}}))
    facts = diagnosed_module._run_trees(
        client, stored, rs.SampleCounts(path_tokens=8, unique_tokens=6)
    )
    assert client.trees.called == read and not client.whole_trees.called
    assert (facts is None) != read
    if facts is not None:
        assert (facts.shared, facts.newest) == (0.25, [])


# Answers such as "1 2 2 1 ", to the limit of the path; the last number is right or wrong, evenly.
DIGIT = {"1": 0.5, "2": 0.5}
CHAIN = {"": DIGIT, " ": DIGIT, "1": {" ": 1.0}, "2": {" ": 1.0}}


def diagnosed(folder: Path, policy: str, **settings: Any) -> dict[str, Any]:
    """Train some steps with answers of 16 tokens, and return the diagnosis as JSON."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "go {n}", "answer": "1"}}\n' for n in range(20)))
    data = recipe(
        tiny_model(folder / "model"),
        task={"name": "file", "path": str(rows)},
        filter=[{"name": "number", "settings": {"take": "last"}}],
        generate={"policy": policy, "settings": settings, "max_new_tokens": 16},
        budget={"steps": 4, "minutes": 5.0},
        eval={"samples": 0, "max_rows": 1},
        resources={"engine": "scripted", "engine_settings": {"chain": CHAIN}},
    )
    (folder / "recipe.yaml").write_text(yaml.safe_dump(data))
    state = folder / "state"
    done = command.process("train", folder / "recipe.yaml", "--state", state)
    assert done.returncode == 0, done.stdout + done.stderr
    (listed,) = json.loads(command.banyan("runs", "ls", "--json", "--state", state).stdout)
    said = command.banyan("doctor", listed["run_id"], "--json", "--state", state)
    assert said.returncode == 0, said.stderr
    result: dict[str, Any] = json.loads(said.stdout)
    return result


def of_trees(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for f in result["findings"] if f["name"] == "trees-do-not-pay"]


@pytest.mark.slow
def test_a_run_whose_trees_share_has_no_finding(tmp_path: Path) -> None:
    result = diagnosed(tmp_path, "treepo", width=8, segment=5, max_depth=4)
    assert result["steps"] == 4 and of_trees(result) == []


@pytest.mark.slow
def test_a_run_whose_segments_are_as_long_as_its_answers_is_told(tmp_path: Path) -> None:
    (finding,) = of_trees(diagnosed(tmp_path, "treepo", width=8, segment=16, max_depth=4))
    facts = {e["metric"]: e["value"] for e in finding["evidence"]}
    assert (facts["saved_share"], facts["forked_groups_share"]) == (0.0, 0.0)
    assert (facts["answer_tokens_median"], facts["shared_share"]) == (16.0, 0.0)
    sets = [lever["set"] for lever in finding["levers"]]
    assert sets == ["generate.settings.segment=5", "generate.policy=iid"]
