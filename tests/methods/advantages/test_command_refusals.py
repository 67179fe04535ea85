"""`banyan advantages` refuses bad input with one clear message."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from banyan import registry
from banyan.errors import InvalidInput
from tests.methods.advantages.tree_lines import TREEPO_TREE, flat, node, run, tree


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ("line 2", "not JSON", "banyan trees export")),
        ("[1]", ("line 2", "JSON object", "[1]")),
        ('{"task_id": "t", "tree_id": "x"}', ("line 2", "`nodes`", "null")),
        (
            '{"task_id": 7, "tree_id": "x", "nodes": [{"id": "a"}]}',
            ("line 2", "'task_id'", "a string, got 7"),
        ),
        (tree("x", [node("a", "nobody")]), ("line 2", "node 'a'", "'nobody'")),
        (tree("x", [node("a"), node("a")]), ("line 2", "'a' stands twice")),
        (
            tree("x", [node("a", reward=True)]),
            ("line 2", "node 'a' has reward true", "finite number"),
        ),  # type: ignore[arg-type]
        (tree("x", [node("a", reward=float("nan"))]), ("line 2", "node 'a' has reward NaN")),
        (tree("x", [node("a", kind="WOOD")]), ("line 2", 'kind "WOOD"', "POLICY")),
        (tree("x", [node("a", fork=5)]), ("line 2", "fork 5")),
        (tree("x", [node("a", tokens=[-1])]), ("line 2", "token -1")),
        (
            tree("x", [node("a", logprobs=[-1.0])]),
            ("line 2", "node 'a'", "2 tokens", "1 log-probs"),
        ),
        (
            tree("x", [{"id": "a", "parent": "b"}, {"id": "b", "parent": "a"}]),
            ("line 2", "its own ancestor"),
        ),
        ("[" * 100_000, ("line 2", "deeper than can be read")),
        ('{"tree_id": ' + "7" * 5000 + "}", ("line 2", "not JSON", "4300")),
        (tree("x", [node("\ud800", reward=1)]), ("line 2", "'id' \"\\ud800\"", "lone surrogate")),
        (
            tree("x", [node("a", reward=10**400)]),
            ("line 2", "node 'a' has reward 1", "finite number"),
        ),
        (tree("x", [node("a", parent=["root"])]), ("line 2", "node 'a' has parent ['root']")),
        (tree("x", [node("a", kind=["POLICY"])]), ("line 2", "node 'a' has kind")),
        (tree("x", [node("a", named={"f": 10**400})]), ("line 2", "node 'a' has named")),
        (
            tree("x", [node("a", leaves=[{"end": 1}, {"end": 1}])]),
            ("line 2", "two leaves that end after 1 tokens"),
        ),
        (
            tree("x", [node("a", reward=1, leaves=[{"reward": 0}])]),
            ("line 2", "reward 1 and a leaf at its end"),
        ),
        (flat("w", 1, 0), ("line 2", "tree 'w' stands in line 1 already")),
    ],
)
def test_bad_input_is_one_message(
    capsys: Any, tmp_path: Path, line: str, words: tuple[str, ...]
) -> None:
    file = tmp_path / "trees.jsonl"
    file.write_text(flat("w", 1, 0) + "\n" + line + "\n")
    assert run("advantages", str(file)) == 2
    output = capsys.readouterr()
    assert output.err.count("error:") == 1 and "Traceback" not in output.err and not output.out
    for word in words:
        assert word in " ".join(output.err.split()), output.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--estimator", "gripo"), ("'gripo'", "known:", "grpo")),
        (("--estimator", "os:getcwd"), ("'os:getcwd'", "no estimator", "estimate")),
        (("--estimator", ":x"), ("cannot import ''",)),
        (("--set", "scale=batch"), ("'batch'", "std or none")),
        (("--set", "whiten=maybe"), ("whiten='maybe'", "true or false")),
        (("--set", "whiten"), ("key=value",)),
        (("--set", "colour=red"), ("'colour'", "scale, epsilon")),
        (("--estimator", "mars2"), ("line 1", "segment b of", "score every program")),
        (("--estimator", "xrpo"), ("line 1", "node 'b1'", "logprobs")),
        (("--estimator", "echo"), ("line 1", "b1", "logprobs")),
    ],
)
def test_bad_options_and_missing_facts_are_one_message(
    capsys: Any, tmp_path: Path, options: Any, words: Any
) -> None:
    file = tmp_path / "trees.jsonl"
    file.write_text(tree("t1", [node("b"), node("b1", "b", 0, logprobs=None), node("b2", "b", 1)]))
    assert run("advantages", str(file), *options) == 2
    output = capsys.readouterr()
    assert output.err.count("error:") == 1 and not output.out
    for word in words:
        assert word in " ".join(output.err.split()), output.err


@pytest.mark.parametrize(
    ("estimator", "setting", "words"),
    [
        ("xrpo", "right=x", "right must be a finite number, got 'x'"),
        ("xrpo", "right=.inf", "right must be a finite number, got inf"),
        ("otr", "right=[1]", "right must be a finite number, got [1]"),
        ("otr", "right=true", "right must be a finite number, got True"),
        ("portool", "format=[1]", "format [1] must be a name"),
        ("mars2", "agent=7", "agent 7 must be a name"),
        ("sage-skill", "used=[1]", "used [1] must be a name"),
        ("dapo", "dynamic_sampling=x", "dynamic_sampling 'x' must be true or false"),
        ("dapo", "longest=1.5", "longest must be a whole number in 0..2147483648, got 1.5"),
        ("hgpo", "episode_term=x", "episode_term 'x' must be true or false"),
        ("hgpo", "history=2.5", "history must be a whole number in 0..100, got 2.5"),
        ("treepo", "require_spread=x", "require_spread 'x' must be true or false"),
    ],
)
def test_settings_of_another_kind_are_refused(
    capsys: Any, tmp_path: Path, estimator: str, setting: str, words: str
) -> None:
    (tmp_path / "trees.jsonl").write_text(TREEPO_TREE)
    assert (
        run("advantages", str(tmp_path / "trees.jsonl"), "--estimator", estimator, "--set", setting)
        == 2
    )
    output = " ".join(capsys.readouterr().err.split())
    assert output.count("error:") == 1 and words in output


def test_whiten_of_a_recipe_is_true_or_false() -> None:
    for name in ("reinforce++", "reinforce++-baseline", "treepo"):
        with pytest.raises(InvalidInput, match="whiten 'x' must be true or false"):
            registry.build("optimise", name, {"whiten": "x"})


def test_no_file_and_no_trees_are_said(capsys: Any, tmp_path: Path) -> None:
    assert run("advantages", str(tmp_path / "none.jsonl")) == 2
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "empty.jsonl").write_text("\n")
    assert run("advantages", str(tmp_path / "empty.jsonl")) == 2
    assert "holds no trees" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise SystemExit(0)", r"the estimator raised SystemExit: 0 \(.*own.py, line 4\)"),
        ("return Advantages(('x',) * len(group.trees))", "of group t hold 'x', which is no array"),
    ],
)
def test_an_estimator_of_a_users_own_never_ends_the_command_by_itself(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    lines = (
        "from banyan.plugins import Advantages",
        "class Own:",
        "    def estimate(self, group):",
    )
    (tmp_path / "own.py").write_text("\n".join((*lines, f"        {body}\n")))
    (tmp_path / "trees.jsonl").write_text(flat("a", 1, 0))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    assert run("advantages", str(tmp_path / "trees.jsonl"), "--estimator", "own:Own") == 2
    printed = capsys.readouterr()
    assert not printed.out and re.search(message, " ".join(printed.err.split()))
