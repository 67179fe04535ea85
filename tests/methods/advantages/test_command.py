"""`banyan advantages`: JSON lines in, JSON lines out, one clear message for bad input."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from banyan.cli.render.tree_files import read
from banyan.errors import InvalidInput
from tests.methods.advantages.tree_lines import TREEPO_TREE, flat, node, run, tree


def told(capsys: Any, tmp_path: Path, lines: list[str], *options: str) -> dict[str, dict[str, Any]]:
    file = tmp_path / "trees.jsonl"
    file.write_text("\n".join(lines) + "\n")
    assert run("advantages", str(file), *options) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {row["id"]: row for row in rows}


def test_treepo_on_the_tree_of_the_paper(capsys: Any, tmp_path: Path) -> None:
    rows = told(capsys, tmp_path, [TREEPO_TREE], "--estimator", "treepo", "--json")
    assert [rows[k]["advantage"] for k in ("a1", "a2", "b1", "b2")] == [
        0.625,
        -0.375,
        -0.125,
        -0.125,
    ]
    assert rows["a"] == {
        "tree_id": "t1",
        "id": "a",
        "paths": 2,
        "advantage": 0.125,
        "positive": 0.625,
        "negative": -0.375,
    }
    assert (
        rows["root"]["paths"] == 4
        and rows["root"]["positive"] == 0.625
        and rows["root"]["negative"] == -0.625
    )


def test_whitening_is_off_unless_asked_for(capsys: Any, tmp_path: Path) -> None:
    rows = told(capsys, tmp_path, [TREEPO_TREE], "--estimator", "treepo", "--set", "whiten=true")
    values = [rows[k]["advantage"] for k in ("a1", "a2", "b1", "b2")]
    tokens = 16  # four paths of four trained tokens each
    assert values[0] == pytest.approx(0.625 / (0.5625 / 4 * tokens / (tokens - 1)) ** 0.5, abs=1e-6)
    raw = told(
        capsys, tmp_path, [flat("x", 1, 0), flat("y", 1, 1, task="u")], "--estimator", "reinforce++"
    )
    assert [raw[k]["advantage"] for k in ("x0", "x1", "y0", "y1")] == [1, 0, 1, 1]


def test_trees_of_a_task_are_a_group_wherever_they_stand(capsys: Any, tmp_path: Path) -> None:
    lines = [flat("x", 1, 0), flat("y", 1, 0, task="u"), flat("z", 0, 0)]
    rows = told(capsys, tmp_path, lines)
    assert [rows[k]["advantage"] for k in ("x0", "x1", "z0", "z1")] == pytest.approx(
        [1.5, -0.5, -0.5, -0.5], abs=1e-5
    )
    assert rows["y0"]["advantage"] == pytest.approx(0.7071, abs=1e-4)


def said_of(line: str, **more: str) -> str:
    return json.dumps(json.loads(line) | more)


def test_trees_of_evaluations_are_left_out_unless_asked_for(capsys: Any, tmp_path: Path) -> None:
    lines = [
        said_of(flat("x", 1, 0), purpose="TRAIN"),
        said_of(flat("b", 0, 0), purpose="EVAL", label="before"),
        said_of(flat("a", 0, 0), purpose="EVAL", label="after"),
    ]
    (tmp_path / "trees.jsonl").write_text("\n".join(lines))
    assert run("advantages", str(tmp_path / "trees.jsonl"), "--estimator", "dr-grpo") == 0
    printed = capsys.readouterr()
    rows = {row["id"]: row["advantage"] for row in map(json.loads, printed.out.splitlines())}
    assert rows == {"root": 0.0, "x0": 0.5, "x1": -0.5}
    assert "2 trees of evaluations" in printed.err and "--eval" in printed.err
    rows = told(capsys, tmp_path, lines, "--estimator", "dr-grpo", "--eval")
    assert rows["x0"]["advantage"] == pytest.approx(1 - 1 / 6) and rows["b0"][
        "advantage"
    ] == pytest.approx(-1 / 6)
    (tmp_path / "trees.jsonl").write_text(lines[1])
    assert run("advantages", str(tmp_path / "trees.jsonl")) == 2
    assert "evaluations only (1); --eval takes them" in " ".join(capsys.readouterr().err.split())


def test_trees_are_compared_as_they_were_grown_where_asked_for(capsys: Any, tmp_path: Path) -> None:
    lines = [
        said_of(flat("x", 1, 0), group_id="g1"),
        said_of(flat("y", 1, 1), group_id="g2"),
        said_of(flat("z", 0, 0), group_id="g2"),
    ]
    rows = told(capsys, tmp_path, lines, "--estimator", "dr-grpo", "--by", "group")
    assert [rows[k]["advantage"] for k in ("x0", "x1", "y0", "z0")] == [0.5, -0.5, 0.5, -0.5]
    assert told(capsys, tmp_path, lines, "--estimator", "rloo")["x0"]["advantage"] == pytest.approx(
        1 - 2 / 5
    )
    (tmp_path / "trees.jsonl").write_text(flat("w", 1, 0))
    assert run("advantages", str(tmp_path / "trees.jsonl"), "--by", "group") == 2
    assert "line 1: tree 'w' has no `group_id`" in " ".join(capsys.readouterr().err.split())


def test_node_values_and_branches_that_no_leaf_uses(capsys: Any, tmp_path: Path) -> None:
    nodes = [node("a", reward=1), node("b"), node("b1", "b", 0), node("b2", "b", 1), node("dead")]
    rows = told(capsys, tmp_path, [tree("t1", nodes)], "--estimator", "treerl")
    assert [rows[k]["advantage"] for k in ("a", "b", "b1", "b2")] == pytest.approx(
        [1.0, -0.5, -1.75, 1.25]
    )
    assert rows["b"]["negative"] == -1.0 and rows["b"]["paths"] == 2
    assert rows["dead"] == {
        "tree_id": "t1",
        "id": "dead",
        "paths": 0,
        "advantage": None,
        "positive": 0,
        "negative": 0,
    }


def test_inner_rewards_are_read_where_an_estimator_uses_them(capsys: Any, tmp_path: Path) -> None:
    nodes = [
        node("P", reward=0.4),
        node("c1", "P", 0.8),
        node("c2", "P", 0.2),
        node("Q", reward=0.6),
    ]
    rows = told(
        capsys, tmp_path, [tree("t1", nodes)], "--estimator", "mars2", "--set", "parent=raw"
    )
    assert [rows[k]["advantage"] for k in ("P", "Q", "c1", "c2")] == pytest.approx(
        [-0.463, 0.4086, 1.1712, -1.1167], abs=1e-4
    )
    plain = told(capsys, tmp_path, [tree("t1", nodes)], "--estimator", "dr-grpo")
    assert plain["c1"]["advantage"] == pytest.approx(0.8 - 1.6 / 3)


def test_a_leaf_inside_a_segment_is_where_leaves_say(capsys: Any, tmp_path: Path) -> None:
    nodes = [
        node("a", leaves=[{"end": 1, "reward": 1}, {"end": 2, "reward": 0}]),
        node("b", leaves=[]),
    ]
    rows = told(capsys, tmp_path, [tree("t1", nodes)], "--estimator", "dr-grpo")
    assert rows["a"]["paths"] == 2 and rows["a"]["positive"] == 0.5 and rows["b"]["paths"] == 0


def test_named_states_reach_gigpo(capsys: Any, tmp_path: Path) -> None:
    def step(name: str, parent: str, state: str, reward: float | None = None) -> dict[str, Any]:
        return node(name, parent, reward, named={"state": state}, finish="TOOL_CALL")

    nodes = [
        step("1", "root", "A"),
        step("2", "1", "B"),
        step("3", "2", "C", 10),
        step("4", "root", "A"),
        step("5", "4", "D", 0),
    ]
    rows = told(capsys, tmp_path, [tree("t1", nodes)], "--estimator", "gigpo")
    assert [rows[k]["advantage"] for k in "12345"] == pytest.approx([8.5125, 4, 4, -10.5125, -6])


def test_advantages_of_thousands_are_warned_of(capsys: Any, tmp_path: Path) -> None:
    """If most rewards are equal, MAD is 0 and the scale is 1 / epsilon (MC-GRPO, arXiv
    2601.22582)."""
    (tmp_path / "trees.jsonl").write_text(
        "\n".join([flat("x", 1, 0, 0), flat("y", 0.2, 0.9, 0.4, task="u")])
    )
    reported = {}
    bare = ("mc-grpo", "--set", "floor=0")
    for name, *options in (bare, ("mc-grpo", "--set", "floor=0.1"), ("mc-grpo",), ("grpo",)):
        assert run("advantages", str(tmp_path / "trees.jsonl"), "--estimator", name, *options) == 0
        reported[(name, *options)] = " ".join(capsys.readouterr().err.split())
    assert "an advantage of 3000 is beyond" in reported[bare] and "--set floor=1" in reported[bare]
    assert [output for how, output in reported.items() if how != bare] == ["", "", ""]


def test_trees_come_as_input_too(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(flat("x", 1, 0).encode())))
    assert run("advantages", "-", "--estimator", "rloo") == 0
    assert [json.loads(line)["advantage"] for line in capsys.readouterr().out.splitlines()] == [
        0,
        1,
        -1,
    ]


def test_what_the_store_prints_is_read_as_it_was() -> None:
    from banyan.segment import Kind, Segment
    from banyan.v1 import tree_pb2
    from banyan.wire.segments import segment_to_wire
    from services.treestore.queries import export

    root = Segment(b"t" * 32, b"", 0, 0, Kind.PROMPT, [1, 2])
    created = Segment(
        b"t" * 32, root.id, 2, 0, Kind.POLICY, [3, 4, 5], [-1, -2, -3], entropies_T=[0.5, 1, 2]
    )
    scores = [
        tree_pb2.ScoredLeaf(
            leaf=tree_pb2.LeafRef(segment=created.id, end=end),
            scorer="s",
            score=tree_pb2.Score(
                state=tree_pb2.SCORE_STATE_SCORED, value=value, parts={"used": 1.0}
            ),
        )
        for end, value in ((2, 1.0), (3, 0.5))
    ]
    message = tree_pb2.Tree(
        spec=tree_pb2.TreeSpec(tree_id=b"t" * 32, row_digest=b"r" * 32),
        segments=[segment_to_wire(s) for s in (root, created)],
        leaves=[s.leaf for s in scores],
        scores=scores,
    )
    line = read(export.line(message), 1)
    assert [(leaf.end, line.rewards[leaf]) for leaf in line.leaves] == [(2, 1.0), (3, 0.5)]
    assert line.names[line.leaves[0].segment] == created.id.hex()
    assert line.facts.of_leaf(line.leaves[0], "used") == 1.0
    assert list(line.tree.segments[line.leaves[0].segment].entropies_T) == [0.5, 1, 2]
    assert json.loads(export.line(message))["nodes"][1]["reward"] == 0.5
    with pytest.raises(InvalidInput, match="line 3: not JSON"):
        read("nothing", 3)


@pytest.mark.parametrize("beside", [True, False])
def test_an_estimator_is_found_beside_the_trees_and_in_the_working_folder(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    own, trees = tmp_path / "own", tmp_path / "trees"
    own.mkdir()
    trees.mkdir()
    module = "from methods.advantages.rloo import Rloo as Mine\n"
    ((trees if beside else own) / "estimators_of_mine.py").write_text(module)
    (trees / "trees.jsonl").write_text(flat("a", 1, 0))
    monkeypatch.chdir(own)
    monkeypatch.delitem(sys.modules, "estimators_of_mine", raising=False)
    before = list(sys.path)
    command = ("advantages", str(trees / "trees.jsonl"), "--estimator", "estimators_of_mine:Mine")
    assert run(*command) == 0, capsys.readouterr().err
    assert [row["advantage"] for row in map(json.loads, capsys.readouterr().out.splitlines())][
        1:
    ] == [1, -1]
    assert sys.path == before
