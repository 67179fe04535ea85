"""Receipts of a stored run as rewards and states of steps: gigpo and hgpo against their papers.

A path's answers reach the store with receipts; the store's transcript gives their rewards to the
scorer `environment`, and what the learner reads has to give the advantages that are known by hand.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from banyan import registry
from banyan.digest import blake
from banyan.environments import receipts
from banyan.environments.observation import Effect
from banyan.environments.receipts import Receipt
from banyan.errors import InvalidInput
from banyan.plugins import Scored
from banyan.recipe_loader.load import resolve
from banyan.segment import Finish, Kind, Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.segments import leaf_to_wire
from services.learner.data import from_store
from services.learner.data.prepare import build_lesson
from services.treestore.queries import transcripts, trees
from services.treestore.storage.database import Database
from services.treestore.storage.settings import Settings
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring
from tests.banyan.environments.test_observation import SEEN
from tests.learner.data.test_node_rewards import TwoTasks
from tests.treestore.forge import Forge, World


@dataclass(frozen=True)
class Turn:
    """An answer to an action."""

    text: str
    reward: float = 0.0
    anchor: bytes = b""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    database = Database(f"sqlite:///{tmp_path / 'store.sqlite'}").open()
    yield World(database, Forge(), Settings()).start()
    database.close()


def answer(world: World, action: Segment, turn: Turn, *, last: bool) -> Segment:
    """Return the segment of an answer, with a receipt of this system's key."""
    seen = replace(
        SEEN,
        action=action.id,
        answer=blake(turn.text.encode()),
        shown=blake(turn.text.encode()),
        after=blake(action.id),  # no two paths share a digest of a state
        effect=Effect.STATE,
        reward=turn.reward,
        done=last,
        anchor=turn.anchor,
    )
    mac = receipts.mac(world.settings.receipt_key, world.forge.run_id, action.tree_id, seen)
    return world.forge.child(
        action,
        kind=Kind.TOOL,
        tokens_T=np.frombuffer(turn.text.encode(), np.uint8).astype(np.int32),
        logprobs_T=[],
        policy=b"",
        finish=Finish.STOP if last else Finish.BOUNDARY,
        receipt=Receipt(seen, mac),
        text=turn.text,
    )


def play(world: World, spec: tree_pb2.TreeSpec, turns: Sequence[Turn]) -> None:
    """Store the tree of one path, and have its leaf scored."""
    forge, epoch = world.forge, world.open(spec)
    path = [forge.root(spec)]
    for number, turn in enumerate(turns):
        action = forge.child(path[-1], finish=Finish.TOOL_CALL)
        path += [action, answer(world, action, turn, last=number == len(turns) - 1)]
    end = path[-1]
    world.ingest(
        forge.segments(*path, epoch=epoch),
        forge.leaf(end, epoch=epoch),
        forge.grown(spec.tree_id, end, epoch=epoch),
    )
    leaf = leaf_to_wire(Leaf(end.id, len(end)))
    key = ts.LeafKey(tree_id=spec.tree_id, leaf=leaf, claim_epoch=epoch)
    (told,) = world.database.query(lambda c: transcripts.read(c, [key]))
    for name in told.scorers:
        value = verdict(name, told)
        scored = tree_pb2.ScoredLeaf(leaf=leaf, scorer=name, scorer_version="1", score=value)
        event = events_pb2.LeafScored(run_id=forge.run_id, tree_id=spec.tree_id, scored=scored)
        world.ingest(forge.item("score", events_pb2.LeavesScored(scores=[event])))


def verdict(name: str, told: ts.LeafTranscript) -> tree_pb2.Score:
    """Return the verifier's score; 1 for any scorer but `environment`."""
    value = 1.0
    if name == "environment":
        spec = ScorerSpec(name, {})
        found = asyncio.run(SCORING.score(spec, told.completion, {}, turns=told.turns))
        assert isinstance(found.outcome, Scored)
        value = found.outcome.value
    return tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value)


SCORING = Scoring(Pool(Limits()))


def advantages(
    world: World,
    paths: Sequence[Sequence[Turn]],
    name: str,
    scorers: Sequence[str] = ("environment",),
    weights: Sequence[float] = (),
    **settings: Any,
) -> list[list[float]]:
    """Return the advantage of each step of each path of a stored group."""
    more = {"scorers": scorers, "scorer_weights": weights}
    specs = [world.forge.spec(0, i, len(paths), **more) for i in range(len(paths))]
    for spec, turns in zip(specs, paths, strict=True):
        play(world, spec, turns)
    stored = world.database.query(lambda c: trees.read(c, [s.tree_id for s in specs]))
    assert [tree.state for tree in stored] == [tree_pb2.TREE_STATE_CLOSED] * len(paths)
    groups = from_store.by_group(stored, [specs[0].group_id])
    estimator = registry.estimator(name, settings)
    lesson = build_lesson(groups, estimator, lambda _tree, _leaf: False, b"now", 10_000)
    found = [
        advantage_T[mask_T].reshape(-1, 4)
        for sequence in lesson.sequences
        for mask_T, advantage_T in zip(sequence.mask_P_T, sequence.advantage_P_T, strict=True)
    ]
    assert all((np.ptp(step_S_T, axis=1) == 0).all() for step_S_T in found), "one value a step"
    return [step_S_T[:, 0].tolist() for step_S_T in found]


def chain(states: str, rewards: Sequence[float], anchored: bool = False) -> list[Turn]:
    """Return the answers of a path: the state after each action, and what the action earned.

    With anchors no two texts are the same.
    """
    return [
        Turn(f"{state}{number} {reward}" if anchored else state, reward, state.encode() * anchored)
        for number, (state, reward) in enumerate(zip(states, rewards, strict=True))
    ]


@pytest.mark.parametrize("anchored", [False, True], ids=["texts", "anchors"])
def test_gigpo_through_a_stored_run(world: World, anchored: bool) -> None:
    """States A B C and A D, where A is the prompt; 10 at the end of the first (2505.10978)."""
    paths = [chain("BCx", (0, 0, 10), anchored), chain("Dy", (0, 0), anchored)]
    first, second = advantages(world, paths, "gigpo")
    np.testing.assert_allclose(first, (8.5125, 4, 4), rtol=1e-6)
    np.testing.assert_allclose(second, (-10.5125, -6), rtol=1e-6)


@pytest.mark.parametrize("anchored", [False, True], ids=["texts", "anchors"])
def test_hgpo_through_a_stored_run(world: World, anchored: bool) -> None:
    """Returns .8 .9 1 in A B S; .2 .3 .4 in A B S; .5 .9 in C S; before them all the prompt."""

    def rewards(*returns: float) -> list[float]:
        return [0.0, *(a - 0.95 * b for a, b in zip(returns, (*returns[1:], 0.0), strict=True))]

    paths = [
        chain("ABSx", rewards(0.8, 0.9, 1), anchored),
        chain("ABSy", rewards(0.2, 0.3, 0.4), anchored),
        chain("CSz", rewards(0.5, 0.9), anchored),
    ]
    found = advantages(world, paths, "hgpo")
    np.testing.assert_allclose(found[0][1:], (1, 1, 0.9753), atol=5e-4)
    np.testing.assert_allclose(found[1][1:], (-1, -1, -1.0882), atol=5e-4)
    np.testing.assert_allclose(found[2][1:], (0, 0.508), atol=5e-4)


def test_what_other_scorers_say_belongs_to_the_last_step(world: World) -> None:
    """Of two scorers each has half: (10 + 1) / 2, of which the first step earned 5."""
    paths = [chain("Bx", (10, 0)), chain("Cy", (0, 0))]
    both = advantages(world, paths, "gigpo", ("environment", "other"), gamma=0.5)
    # Totals 5.5 and .5; returns of first steps 5 + .5 · .5 and .5 · .5, of second ones alone.
    np.testing.assert_allclose(both, [[2.5 + 2.5, 2.5], [-2.5 - 2.5, -2.5]], rtol=1e-6)


@pytest.mark.parametrize(
    ("weights", "first"),
    [
        ((3.0, 1.0, 0.0), 7.5),  # 3/4 of 10; what is only watched has no share
        ((3.0, 1.0, -0.5), 7.5),  # a penalty is no part of the divisor
        ((-1.0, 2.0, 0.0), -5.0),  # and takes its share of the sum of the others
    ],
)
def test_what_a_step_earned_counts_by_its_scorers_weight(
    world: World, weights: Sequence[float], first: float
) -> None:
    """The first step earned `first` of its path's reward; the rest is the same in both paths."""
    paths = [chain("Bx", (10, 0)), chain("Cy", (0, 0))]
    scorers = ("environment", "other", "third")
    found = advantages(world, paths, "gigpo", scorers, weights, gamma=0.5)
    half = first / 2  # of the two paths' rewards, and of the returns from the prompt
    np.testing.assert_allclose(found, [[2 * half, half], [-2 * half, -half]], rtol=1e-6)


def test_without_the_scorer_no_step_earns_anything(world: World) -> None:
    paths = [chain("Bx", (10, 0)), chain("Cy", (0, 0))]
    assert advantages(world, paths, "gigpo", ("other",)) == [], "a group that teaches nothing"


def test_a_completion_alone_has_earned_nothing() -> None:
    found = asyncio.run(SCORING.score(ScorerSpec("environment", {}), "text", {}))
    assert "a completion alone" in found.outcome.reason  # type: ignore[union-attr]


BASE = {"name": "r", "model": "m", "task": {"name": "arithmetic"}}
ACTING = {"environment": {"name": "calculator"}, "generate": {"policy": "turns"}}


def test_a_recipe_without_an_environment_has_nothing_to_add_up() -> None:
    filters = {"filter": [{"name": "environment"}]}
    assert resolve(BASE | ACTING | filters | {"optimise": {"advantage": "hgpo"}})
    with pytest.raises(InvalidInput, match="adds up the rewards of an environment, and the recipe"):
        resolve(BASE | filters)


class Twice(TwoTasks):
    """A tree policy that has places inside paths scored, and lets paths act."""

    acts = True


def test_a_reward_does_not_count_twice() -> None:
    policy = {"generate": {"policy": f"{__name__}:Twice"}}
    assert resolve(BASE | ACTING | policy)
    with pytest.raises(InvalidInput, match="would count the rewards of earlier steps again"):
        resolve(BASE | ACTING | policy | {"filter": [{"name": "environment"}]})
