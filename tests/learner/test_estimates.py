"""EstimateAdvantages answers as `banyan advantages` does, with any estimator."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from banyan.errors import InvalidInput
from banyan.segment import Kind, Segment
from banyan.v1 import learner_service_pb2 as messages
from banyan.v1 import tree_pb2
from banyan.wire.segments import segment_to_wire
from services.learner import server
from services.learner.consumer import ClosedTrees
from services.learner.data import explain
from services.learner.learner import Learner
from services.learner.ports import StoredBatch
from services.learner.training.checkpointer import Checkpointer
from services.learner.training.trainer_thread import TorchThread
from services.learner.weights.folder import WeightFolder
from services.treestore.queries import export
from tests.learner.in_memory_learner import RUN, MemoryStore, grown, recipe
from tests.methods.advantages.test_command import run

Ends = dict[int, float]  # end of a path in tokens → reward


def tree(number: int, task: str, *segments: tuple[int, int, int, Ends]) -> tree_pb2.Tree:
    """Return a tree of a prompt of two tokens, and segments of (parent, fork, tokens, ends)."""
    tree_id = bytes([number]) * 32
    grown_segments = [Segment(tree_id, b"", 0, 0, Kind.PROMPT, [1, 2])]
    scores = []
    for ordinal, (parent, fork, size, ends) in enumerate(segments):
        entropies = np.linspace(0.5, 2.0, size)
        above = grown_segments[parent].id
        one = Segment(
            tree_id,
            above,
            fork,
            ordinal,
            Kind.POLICY,
            range(size),
            [-1.0] * size,
            entropies_T=entropies,
        )
        grown_segments.append(one)
        for end, value in ends.items():
            score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value)
            scores.append(
                tree_pb2.ScoredLeaf(
                    leaf=tree_pb2.LeafRef(segment=one.id, end=end), scorer="s", score=score
                )
            )
    spec = tree_pb2.TreeSpec(
        tree_id=tree_id, group_id=task, row_digest=task.encode().ljust(32, b"-")
    )
    return tree_pb2.Tree(
        spec=spec,
        segments=[segment_to_wire(s) for s in grown_segments],
        leaves=[s.leaf for s in scores],
        scores=scores,
    )


def trees() -> list[tree_pb2.Tree]:
    """Return trees with forks and an end inside segments, a bare branch, and a second group."""
    return [
        tree(1, "g", (0, 2, 5, {5: 1.0}), (1, 2, 3, {3: 0.0}), (1, 4, 1, {1: 0.5}), (0, 2, 2, {})),
        tree(2, "g", (0, 2, 4, {2: 0.25, 4: 0.75}), (0, 2, 1, {1: 0.0})),
        tree(3, "h", (0, 2, 2, {2: 1.0}), (0, 2, 3, {3: 0.0}), (0, 2, 1, {1: 0.0})),
    ]


Answers = dict[tuple[str, str], tuple[int, float | None, float, float]]


async def served(stored: list[tree_pb2.Tree], name: str, settings: dict[str, Any]) -> Answers:
    request = messages.EstimateAdvantagesRequest(
        trees=stored, estimator_json=json.dumps({"name": name, "settings": settings})
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


def printed(
    stored: list[tree_pb2.Tree], name: str, settings: dict[str, Any], folder: Path, capsys: Any
) -> Answers:
    file = folder / "trees.jsonl"
    file.write_text("".join(f"{export.line(one)}\n" for one in stored))
    options = [
        word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")
    ]
    assert run("advantages", str(file), "--by", "group", "--estimator", name, *options) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {
        (r["tree_id"], r["id"]): (r["paths"], r["advantage"], r["positive"], r["negative"])
        for r in rows
    }


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
async def test_the_service_answers_as_the_command_does(
    name: str, settings: Any, tmp_path: Path, capsys: Any
) -> None:
    answered = await served(trees(), name, settings)
    expected = printed(trees(), name, settings, tmp_path, capsys)
    assert (
        answered.keys()
        == expected.keys()
        == {(t.spec.tree_id.hex(), s.id.hex()) for t in trees() for s in t.segments}
    )
    for key, row in expected.items():
        assert answered[key][:1] == row[:1] and (answered[key][1] is None) == (row[1] is None) == (
            not row[0]
        ), key
        numbers = [value for value in answered[key] if value is not None]
        assert np.isfinite(numbers).all() and numbers == pytest.approx(
            [v for v in row if v is not None], rel=1e-9, abs=1e-9
        )


@pytest.mark.parametrize(
    "optimise",
    [
        {"loss_settings": {"kl": {"coef": 0.1, "where": "reward"}}},
        {"loss_settings": {"kl": {"coef": 0.1, "where": "loss"}}},
        {
            "advantage": "reinforce++",
            "loss_settings": {"kl": {"coef": 0.1, "estimator": "k1", "where": "reward"}},
        },
        {"entropy_quantile": 0.4, "loss_settings": {"kl": {"coef": 0.1, "where": "reward"}}},
    ],
    ids=["kl-in-rewards", "kl-in-the-loss", "whitened", "masked"],
)
async def test_a_learner_answers_with_the_credits_of_its_step(
    optimise: dict[str, Any], tmp_path: Path, tiny_folder: Path
) -> None:
    """Its numbers are those of the step's own credits, and differ without the penalty."""
    stored = [one for ordinal in (0, 1) for one in with_entropies(grown(ordinal, b"p"))]
    thread = TorchThread(recipe(1, loss="ppo-clip", **optimise), 1)
    try:
        await thread.load(tiny_folder, resumed=False, base=tiny_folder)
        learner = Learner(
            RUN,
            thread._recipe,
            held_out=frozenset(),
            store=MemoryStore(grown),
            trigger=ClosedTrees(),
            torch_thread=thread,
            weights=WeightFolder(tmp_path / "weights"),
            checkpointer=Checkpointer(tmp_path, tiny_folder, thread, 100),
        )
        learner.at.step = 9  # an answer is for leaves of any age
        groups = tuple(one.spec.group_id for one in stored)
        batch = StoredBatch(0, groups, tuple(one.spec.tree_id for one in stored), {})
        fetched = await learner.preparer.fetch(batch, stored, committed=True)
        lesson = await learner.preparer.prepare(fetched, committed=True)
        servicer = server.LearnerServicer()
        servicer.learner = learner
        answer = await servicer.EstimateAdvantages(
            messages.EstimateAdvantagesRequest(trees=stored), None
        )
    finally:
        thread.done()
    trained = [line for one in lesson.credits for line in explain.lines(one, 0)]
    answered = [
        (a.segment, a.paths, a.advantage, a.positive, a.negative)
        for a in answer.advantages
        if a.paths
    ]
    assert answered == [
        (t.segment, t.paths, t.advantage, t.positive, t.negative) for t in trained if t.paths
    ]
    plain = [one.rewards_L.tolist() for credit in lesson.credits for one in credit.group.trees]
    taken = optimise["loss_settings"]["kl"]["where"] == "reward"
    assert (plain == [[float(i == ordinal) for i in range(4)] for ordinal in (0, 1)]) is not taken
    # What the step reports are the scores, 1 of 4 in both groups, whatever was subtracted.
    reported = lesson.metrics["reward"], lesson.metrics["reward_std"]
    assert reported == pytest.approx((0.25, (3 / 16) ** 0.5))


def with_entropies(trees: list[tree_pb2.Tree]) -> list[tree_pb2.Tree]:
    """Return the trees with entropies, as some engines record them."""
    for tree in trees:
        for number, segment in enumerate(tree.segments[1:]):
            segment.entropies = np.full(3, 0.5 * number, "<f2").tobytes()
    return trees


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "portool", "treerl"])
async def test_rewards_inside_paths_are_exported_and_count(
    name: str, tmp_path: Path, capsys: Any
) -> None:
    """They lie inside a segment and at its end; an unscorable one excludes its path."""
    stored = [
        tree(
            1,
            "g",
            (0, 2, 5, {5: 1.0}),
            (1, 5, 3, {3: 0.0}),
            (0, 2, 2, {2: 0.5}),
            (0, 2, 2, {2: 0.75}),
        ),
        *trees()[1:],
    ]
    settings = {"gamma": 0.5} if name in ("gigpo", "hgpo") else {}
    without = await served(stored, name, settings)
    for segment, at, value in ((1, 2, 0.25), (3, 1, None)):
        scored = tree_pb2.ScoredLeaf(
            leaf=tree_pb2.LeafRef(segment=stored[0].segments[segment].id, end=at), scorer="s"
        )
        scored.score.state = (
            tree_pb2.SCORE_STATE_UNSCORABLE if value is None else tree_pb2.SCORE_STATE_SCORED
        )
        scored.score.value = value or 0.0
        stored[0].scores.append(scored)
    answered, expected = (
        await served(stored, name, settings),
        printed(stored, name, settings, tmp_path, capsys),
    )
    for key, row in expected.items():
        assert answered[key][0] == row[0]
        assert [v for v in answered[key] if v is not None] == pytest.approx(
            [v for v in row if v is not None], abs=1e-9
        )
    lost = answered[stored[0].spec.tree_id.hex(), stored[0].segments[3].id.hex()]
    assert lost[0] == (0 if name in ("gigpo", "hgpo") else 1)
    if name in ("gigpo", "hgpo"):
        kept = {key for key, row in answered.items() if row[0]} - {
            (stored[0].spec.tree_id.hex(), stored[0].segments[3].id.hex())
        }
        assert any(answered[key] != without[key] for key in kept)


async def test_the_pivot_of_mc_grpo_takes_no_part() -> None:
    """(1000, pivot, 0) × 3 / 1; a segment whose only leaf is the pivot has no advantage."""
    answers = list((await served(trees()[2:], "mc-grpo", {"floor": 0.0})).values())
    assert answers == [(2, 1500, 3000, 0), (1, 3000, 3000, 0), (0, None, 0, 0), (1, 0, 0, 0)]


async def test_a_segment_with_a_fork_inside_has_the_mean_over_its_tokens() -> None:
    """The fork lies behind two of five tokens: 0 0 2 2 2 on the path that stays, else 0 0."""
    answers = list(
        (
            await served([tree(1, "g", (0, 2, 5, {5: 1.0}), (1, 2, 3, {3: 0.0}))], "treerl", {})
        ).values()
    )
    assert answers == [(2, 0, 0, 0), (2, 0.6, 1.2, 0), (1, -2, 0, -2)]


@pytest.mark.parametrize("name", ["dr-grpo", "treerl"])
async def test_a_path_that_leaves_before_a_segments_first_token_is_none_of_its_paths(
    name: str,
) -> None:
    """It holds none of the segment's tokens, and a step trains them without it."""
    stored = [tree(1, "g", (0, 2, 3, {3: 1.0}), (1, 0, 2, {2: 0.0}))]
    half = 0.5 if name == "dr-grpo" else 2.0
    assert list((await served(stored, name, {})).values())[1:] == [
        (1, half, half, 0),
        (1, -half, 0, -half),
    ]


async def test_a_leaf_before_a_segments_first_token_is_none_of_its_leaves() -> None:
    answers = list(
        (
            await served([tree(1, "g", (0, 2, 3, {}), (1, 3, 2, {0: 0.0, 2: 0.5}))], "dr-grpo", {})
        ).values()
    )
    assert answers[1:] == [(2, 0, 0.25, -0.25), (1, 0.25, 0.25, 0)]


async def test_a_tree_that_is_given_twice_is_refused() -> None:
    """Its leaves would count twice, in its group's mean and in every sum."""
    with pytest.raises(InvalidInput, match="is given twice; its leaves would count twice"):
        await served([*trees(), trees()[0]], "grpo", {})
