"""EstimateAdvantages says what `banyan advantages` says of the same trees, whatever the estimator."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from banyan.errors import InvalidInput
from banyan.segment import Kind, Segment
from banyan.v1 import learner_service_pb2 as messages
from banyan.v1 import tree_pb2
from banyan.wire import segment_to_wire
from services.learner import server
from services.treestore import export
from tests.advantages.test_command import run

Ends = dict[int, float]  # end of a path in tokens → reward


def tree(number: int, task: str, *segments: tuple[int, int, int, Ends]) -> tree_pb2.Tree:
    """A prompt of two tokens, and segments of (parent, fork, tokens, ends)."""
    tree_id = bytes([number]) * 32
    made = [Segment(tree_id, b"", 0, 0, Kind.PROMPT, [1, 2])]
    scores = []
    for ordinal, (parent, fork, size, ends) in enumerate(segments):
        entropies = np.linspace(0.5, 2.0, size)
        above = made[parent].id
        one = Segment(tree_id, above, fork, ordinal, Kind.POLICY, range(size), [-1.0] * size, entropies_T=entropies)
        made.append(one)
        for end, value in ends.items():
            score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value)
            scores.append(tree_pb2.ScoredLeaf(leaf=tree_pb2.LeafRef(segment=one.id, end=end), scorer="s", score=score))
    spec = tree_pb2.TreeSpec(tree_id=tree_id, group_id=task, row_digest=task.encode().ljust(32, b"-"))
    return tree_pb2.Tree(
        spec=spec, segments=[segment_to_wire(s) for s in made], leaves=[s.leaf for s in scores], scores=scores
    )


def trees() -> list[tree_pb2.Tree]:
    """Forks inside a segment, an end inside one, a branch without a leaf, and a second group."""
    return [
        tree(1, "g", (0, 2, 5, {5: 1.0}), (1, 2, 3, {3: 0.0}), (1, 4, 1, {1: 0.5}), (0, 2, 2, {})),
        tree(2, "g", (0, 2, 4, {2: 0.25, 4: 0.75}), (0, 2, 1, {1: 0.0})),
        tree(3, "h", (0, 2, 2, {2: 1.0}), (0, 2, 3, {3: 0.0}), (0, 2, 1, {1: 0.0})),
    ]


Said = dict[tuple[str, str], tuple[int, float | None, float, float]]


async def served(given: list[tree_pb2.Tree], name: str, settings: dict[str, Any]) -> Said:
    request = messages.EstimateAdvantagesRequest(
        trees=given, estimator_json=json.dumps({"name": name, "settings": settings})
    )
    answer = await server.LearnerServicer().EstimateAdvantages(request, None)
    return {
        (a.tree_id.hex(), a.segment.hex()): (
            a.paths,
            a.advantage if a.HasField("advantage") else None,
            a.positive,
            a.negative,
        )
        for a in answer.advantages
    }


def printed(given: list[tree_pb2.Tree], name: str, settings: dict[str, Any], folder: Path, capsys: Any) -> Said:
    file = folder / "trees.jsonl"
    file.write_text("".join(f"{export.line(one)}\n" for one in given))
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    assert run("advantages", str(file), "--by", "group", "--estimator", name, *options) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {(r["tree_id"], r["id"]): (r["paths"], r["advantage"], r["positive"], r["negative"]) for r in rows}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("grpo", {}),
        ("mc-grpo", {}),
        ("treerl", {}),
        ("rose", {}),
        ("echo", {}),
        ("otr", {}),
        ("treepo", {}),
        ("reinforce++", {}),
        ("reinforce++-baseline", {}),
        ("treepo", {"whiten": True}),
        ("treepo", {"whiten": False}),
        ("reinforce++", {"whiten": True}),
    ],
)
async def test_the_service_answers_as_the_command_does(name: str, settings: Any, tmp_path: Path, capsys: Any) -> None:
    said = await served(trees(), name, settings)
    expected = printed(trees(), name, settings, tmp_path, capsys)
    assert said.keys() == expected.keys() == {(t.spec.tree_id.hex(), s.id.hex()) for t in trees() for s in t.segments}
    for key, row in expected.items():
        assert said[key][:1] == row[:1] and (said[key][1] is None) == (row[1] is None) == (not row[0]), key
        numbers = [value for value in said[key] if value is not None]
        assert np.isfinite(numbers).all() and numbers == pytest.approx([v for v in row if v is not None], rel=1e-9, abs=1e-9)


async def test_the_pivot_of_mc_grpo_takes_no_part() -> None:
    """(1000, pivot, 0) × 3 / 1; a segment whose only leaf is the pivot has no advantage."""
    found = list((await served(trees()[2:], "mc-grpo", {})).values())
    assert found == [(2, 1500, 3000, 0), (1, 3000, 3000, 0), (0, None, 0, 0), (1, 0, 0, 0)]


async def test_a_segment_with_a_fork_inside_has_the_mean_over_its_tokens() -> None:
    """Five tokens of which two lie above the fork: 0 0 2 2 2 on the path that stays, 0 0 on the one that leaves."""
    found = list((await served([tree(1, "g", (0, 2, 5, {5: 1.0}), (1, 2, 3, {3: 0.0}))], "treerl", {})).values())
    assert found == [(2, 0, 0, 0), (2, 0.6, 1.2, 0), (1, -2, 0, -2)]


async def test_a_tree_that_is_given_twice_is_refused() -> None:
    """Its leaves would count twice, in its group's mean and in all that is said of it."""
    with pytest.raises(InvalidInput, match="is given twice; its leaves would count twice"):
        await served([*trees(), trees()[0]], "grpo", {})
