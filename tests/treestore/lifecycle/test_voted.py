"""Votes of rows: the head's scores that scorers get, and the sums that a closing tree adds to."""

import numpy as np
import pytest

from banyan.segment import Finish, Kind, Segment
from banyan.signals import Signals
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.control import progress
from services.treestore.lifecycle import group_scoring
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import CLOSED
from tests.treestore.forge import World

BOTH = {
    "label": "after-voted",
    "scorers": ["number", "vote", "head-vote"],
    "group_scorers": ["vote", "head-vote"],
    "scorer_weights": [1.0, 0.0, 0.0],
}


def heard(world: World, parent: Segment, ordinal: int, *head: float, **more: object) -> Segment:
    """Return a segment of four tokens with the head's scores."""
    return world.forge.child(parent, ordinal, signals=Signals(head_T=np.array(head)), **more)


def grow(world: World, spec: tree_pb2.TreeSpec, *segments: Segment) -> None:
    """Grow a tree whose leaves are the segments that none continues."""
    forge, epoch = world.forge, world.open(spec)
    ends = [one for one in segments if one.id not in {other.parent for other in segments}]
    world.ingest(forge.segments(forge.root(spec), *segments, epoch=epoch))
    world.ingest(*(forge.leaf(end, epoch=epoch, completion="7") for end in ends))
    world.ingest(forge.grown(spec.tree_id, *ends, epoch=epoch))


def heads(world: World, spec: tree_pb2.TreeSpec) -> list[float | None]:
    """Return the head's score of each leaf, as a verifier reads the group."""
    request = ts.ReadGroupRequest(tree_id=spec.tree_id, claim_epoch=1)
    group = world.database.query(lambda c: group_scoring.read(c, request))
    return [leaf.head if leaf.HasField("head") else None for leaf in group.transcripts]


def measured(world: World) -> rs.EvalProgress:
    found = world.database.query(lambda c: progress.read(c, world.forge.run_id, world.now()))
    (one,) = found.evals
    return one


def test_a_scorer_gets_the_last_score_on_each_path(world: World) -> None:
    spec = world.forge.spec(**BOTH)
    root = world.forge.root(spec)
    judged = heard(world, root, 0, 0.25, 0.5, finish=Finish.BOUNDARY, length=2)
    grow(
        world,
        spec,
        judged,
        world.forge.child(judged),  # beyond its judgement nobody asked
        world.forge.child(judged, 1, fork=1),  # leaves before the last score
        heard(world, root, 1, 0.125, 0.25, 0.5, 0.75),
        world.forge.child(root, 2),
        heard(world, judged, 3, 1.0, length=1, kind=Kind.POLICY),
    )
    assert heads(world, spec) == [0.25, 0.5, 1.0, 0.75, None]


def test_without_a_scorer_that_weighs_by_it_no_head_is_read(world: World) -> None:
    alike = {"scorers": ["vote"], "group_scorers": ["vote"], "scorer_weights": []}
    spec = world.forge.spec(**BOTH | alike)
    grow(world, spec, heard(world, world.forge.root(spec), 0, 0.5, 0.5, 0.5, 0.5))
    assert heads(world, spec) == [None]


def scores(world: World, leaves: list[Segment], scorer: str, *values: float | None) -> None:
    for leaf, value in zip(leaves, values, strict=True):
        world.ingest(world.forge.score(leaf, value, scorer))


def test_a_row_adds_the_winners_value_beside_the_mean_of_its_leaves(world: World) -> None:
    """Right leaves: 1 of 4. The majority of two is wrong, the head's one is right."""
    spec = world.forge.spec(**BOTH)
    root = world.forge.root(spec)
    leaves = [world.forge.child(root, ordinal) for ordinal in range(4)]
    grow(world, spec, *leaves)
    scores(world, leaves, "number", 1.0, 0.0, 0.0, None)
    scores(world, leaves, "vote", 0.0, 1.0, 1.0, 0.0)
    assert not measured(world).HasField("votes"), "the row is not over"
    scores(world, leaves, "head-vote", 1.0, 0.0, 0.0, 0.0)
    assert world.one(schema.trees).state == CLOSED
    found = measured(world)
    assert (found.scored, found.unscorable, found.reward_sum) == (3, 1, 1.0)
    leaf = {"leaf_value_sum": pytest.approx(1 / 3), "leaf_correct_sum": pytest.approx(1 / 3)}
    for votes, wanted in ((found.votes, 0), (found.head_votes, 1)):
        assert (votes.rows, votes.value_sum, votes.correct) == (1, wanted, wanted)
        assert {name: getattr(votes, name) for name in leaf} == leaf


def test_where_no_leaf_won_or_the_winner_has_no_value_there_is_no_vote(world: World) -> None:
    for ordinal, won in enumerate((0.0, 1.0, None)):
        spec = world.forge.spec(ordinal, **BOTH)
        leaves = [world.forge.child(world.forge.root(spec), n) for n in (0, 1)]
        grow(world, spec, *leaves)
        scores(world, leaves, "number", None, 1.0)
        scores(world, leaves, "vote", 1.0, 1.0)
        scores(world, leaves, "head-vote", won, 0.0)  # cold; a winner that nobody scored; late
    found = measured(world)
    assert found.done == 3 and not found.HasField("head_votes")
    assert (found.votes.rows, found.votes.correct, found.votes.value_sum) == (3, 3, 3.0)


def test_winners_with_one_answer_count_by_their_mean_and_are_right_from_one_on(
    world: World,
) -> None:
    """The majority's rewards are 0.5 and 1.0, and that of the head's one is 0.5."""
    spec = world.forge.spec(**BOTH)
    leaves = [world.forge.child(world.forge.root(spec), ordinal) for ordinal in range(3)]
    grow(world, spec, *leaves)
    scores(world, leaves, "number", 0.0, 0.5, 1.0)
    scores(world, leaves, "vote", 0.0, 1.0, 1.0)
    scores(world, leaves, "head-vote", 0.0, 1.0, 0.0)
    found = measured(world)
    assert (found.votes.value_sum, found.votes.correct) == (0.75, 0)
    assert (found.head_votes.value_sum, found.head_votes.correct) == (0.5, 0)
    for votes in (found.votes, found.head_votes):
        assert votes.leaf_value_sum == pytest.approx(0.5)
        assert votes.leaf_correct_sum == pytest.approx(1 / 3)
