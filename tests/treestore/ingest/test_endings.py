"""Actions without an answer: only a verifier's word ends their paths without a score."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from banyan.environments import endings, receipts
from banyan.environments.endings import Ending
from banyan.reasons import Reason
from banyan.segment import Finish, Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.endings import to_wire
from banyan.wire.segments import leaf_to_wire
from services.treestore.ingest.item import Item
from services.treestore.lifecycle import claim_batch, waits
from services.treestore.queries import stats
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.unit_of_work import counts
from services.treestore.unit_of_work.rows import CLOSED, SCORED, UNSCORABLE
from tests.treestore.forge import World
from tests.treestore.ingest.test_receipts import answer

DIVERGED = Reason.ENVIRONMENT_DIVERGED
CAUSE = "it was answered otherwise"
SAID = f"{DIVERGED}: {CAUSE}"


class Acting:
    """A tree of two paths: one acts twice, the other speaks."""

    def __init__(self, world: World) -> None:
        self.world, self.forge = world, world.forge
        self.spec = self.forge.spec(scorers=["number", "length"])
        self.epoch = world.open(self.spec)
        root = self.forge.root(self.spec)
        self.first = self.forge.child(root, finish=Finish.TOOL_CALL)
        self.tool = answer(world, self.first)
        self.second = self.forge.child(self.tool, finish=Finish.TOOL_CALL)
        self.spoken = self.forge.child(root, 1, finish=Finish.STOP)
        made = (self.first, self.tool, self.second, self.spoken)
        self.send(self.forge.segments(root, *made))

    def beside(self) -> Segment:
        """Make an action of a path that leaves the first action before its end."""
        made = self.forge.child(self.first, fork=2, finish=Finish.TOOL_CALL)
        self.send(self.forge.segments(made))
        return made

    def send(self, *items: Item) -> None:
        self.world.ingest(*items)

    def ending(self, place: Segment, reason: str = DIVERGED, run_id: str = "") -> Ending:
        key, run_id = self.world.settings.receipt_key, run_id or self.forge.run_id
        return Ending.said(
            key, run_id, self.spec.tree_id, place=place.id, reason=reason, cause=CAUSE
        )

    def leaf(self, segment: Segment, ending: Ending, end: int | None = None) -> Item:
        item = self.forge.leaf(segment, end, epoch=self.epoch)
        message = events_pb2.LeavesFinished.FromString(item.data)
        message.leaves[0].ending.CopyFrom(to_wire(ending))
        return self.forge.item("leaf", message)

    def scores(self) -> dict[tuple[bytes, str], tuple[int, str]]:
        rows = self.world.rows(schema.scores)
        return {(row.segment, row.scorer): (row.state, row.reason) for row in rows}

    def refused(self) -> list[str]:
        return [row.reason for row in self.world.rows(schema.refused)]


@pytest.fixture
def acting(tmp_path: Path) -> Acting:
    """A store whose key is that of an empty secret."""
    return Acting(World(Database(f"sqlite:///{tmp_path / 's.sqlite'}").open()).start())


@pytest.mark.parametrize("reason", sorted(endings.REASONS))
@pytest.mark.parametrize("place", ["first", "second"])
def test_a_proven_ending_makes_one_leaf_unscorable_and_the_tree_goes_on(
    acting: Acting, place: str, reason: str
) -> None:
    ending = acting.ending(getattr(acting, place), reason)
    acting.send(acting.leaf(acting.second, ending), acting.leaf(acting.second, ending))
    assert acting.scores() == {
        (acting.second.id, scorer): (UNSCORABLE, f"{reason}: {CAUSE}")
        for scorer in ("number", "length")
    }
    leaves, forge = (acting.second, acting.spoken), acting.forge
    acting.send(
        forge.leaf(acting.spoken, epoch=acting.epoch),
        forge.grown(acting.spec.tree_id, *leaves, epoch=acting.epoch),
        forge.score(acting.spoken),
        forge.score(acting.spoken, 0.5, "length"),
    )
    counted = acting.world.database.query(lambda c: stats.read(c, forge.run_id))
    assert counted[counts.UNREPEATABLE] == 2, "another run of the seed may not meet it"
    tree = acting.world.one(schema.trees)
    assert (tree.state, tree.reason, tree.mean_reward) == (CLOSED, "", 0.75)
    assert {state for state, _ in acting.scores().values()} == {SCORED, UNSCORABLE}
    assert acting.refused() == []


def test_a_score_that_came_before_stands(acting: Acting) -> None:
    acting.send(acting.forge.score(acting.second, 1.0))
    acting.send(acting.leaf(acting.second, acting.ending(acting.second)))
    assert acting.scores() == {
        (acting.second.id, "number"): (SCORED, ""),
        (acting.second.id, "length"): (UNSCORABLE, SAID),
    }


def false_endings(acting: Acting) -> list[Item]:
    true, second, spoken = acting.ending(acting.second), acting.second, acting.spoken
    theirs = Ending.said(
        receipts.key_of("theirs"),
        acting.forge.run_id,
        acting.spec.tree_id,
        place=second.id,
        reason=DIVERGED,
        cause=CAUSE,
    )
    return [
        acting.leaf(second, replace(true, mac=b"x" * 32)),
        acting.leaf(second, theirs),
        acting.leaf(second, replace(true, reason=Reason.INFRASTRUCTURE)),
        acting.leaf(second, replace(true, cause="it was the node's fault")),
        acting.leaf(second, acting.ending(second, "I_DISLIKE_IT")),
        acting.leaf(second, acting.ending(second, run_id="another-run")),
        acting.leaf(second, acting.ending(spoken)),  # a place on another path
        acting.leaf(spoken, acting.ending(spoken)),  # no action
        acting.leaf(spoken, acting.ending(second)),
        acting.leaf(second, true, end=2),  # inside of the action
        acting.leaf(second, acting.ending(acting.first), end=2),
        acting.leaf(acting.beside(), acting.ending(acting.first)),  # forked before its end
        acting.leaf(acting.first, acting.ending(acting.first)),  # it has an answer
        acting.leaf(acting.tool, acting.ending(acting.first)),
    ]


def test_no_other_leaf_is_dropped_by_an_ending(acting: Acting) -> None:
    false: Any = false_endings(acting)
    for number, item in enumerate(false, start=1):
        acting.send(item)
        assert acting.refused() == [Reason.ENDING_FALSE] * number
    assert not acting.scores() and not acting.world.rows(schema.leaves)
    acting.send(acting.leaf(acting.second, acting.ending(acting.second)))
    assert len(acting.scores()) == 2, "the true one still counts"


def test_a_place_inside_an_action_does_not_close_it(acting: Acting) -> None:
    """Nor does its end, where it is named as a place that paths go on from, nor a fork inside."""
    forge, tree_id = acting.forge, acting.spec.tree_id
    inside = leaf_to_wire(Leaf(acting.second.id, 2))
    end = leaf_to_wire(Leaf(acting.second.id, len(acting.second)))
    spoken = leaf_to_wire(Leaf(acting.spoken.id, len(acting.spoken)))
    fork = forge.child(acting.second, fork=2)
    acting.send(forge.segments(fork, epoch=acting.epoch))
    beside = leaf_to_wire(Leaf(fork.id, len(fork)))
    named: tuple[dict[str, Any], ...] = (
        {"leaves": [spoken, beside, inside]},
        {"leaves": [spoken, beside], "inside": [end]},
    )
    for leaves in named:
        grown = events_pb2.TreeGrown(
            run_id=forge.run_id,
            tree_id=tree_id,
            claim_epoch=acting.epoch,
            node_id="node-1",
            **leaves,
        )
        acting.send(forge.item("grown", events_pb2.TreesGrown(trees=[grown])))
    assert acting.refused() == [Reason.ACTION_OPEN] * 2


@pytest.mark.parametrize("together", [True, False])
def test_growth_does_not_end_while_an_action_is_open(acting: Acting, together: bool) -> None:
    """An action has an answer, or a leaf at its end."""
    beside = acting.beside()
    leaves = {"second": acting.second, "spoken": acting.spoken, "beside": beside}
    for left_out in ("second", "beside"):
        some = [segment for name, segment in leaves.items() if name != left_out]
        acting.send(acting.forge.grown(acting.spec.tree_id, *some, epoch=acting.epoch))
    assert acting.refused() == [Reason.ACTION_OPEN] * 2
    late = answer(acting.world, acting.second)  # then it is an end no more
    behind = acting.forge.child(late, finish=Finish.STOP)
    ends = [behind, acting.spoken, beside]
    messages = [
        acting.forge.segments(late, behind),
        acting.forge.grown(acting.spec.tree_id, *ends, epoch=acting.epoch),
    ]
    for part in [messages] if together else [[message] for message in messages]:
        acting.send(*part)
    assert len(acting.refused()) == 2
    tree = acting.world.one(schema.trees)
    assert tree.grown_epoch == acting.epoch and tree.leaves == 3


def test_nodes_are_told_no_causes(acting: Acting) -> None:
    acting.send(acting.leaf(acting.second, acting.ending(acting.second)))
    world, tree_id = acting.world, acting.spec.tree_id
    asked = ts.AwaitScoresRequest(tree_id=tree_id, epoch=acting.epoch)
    told = list(world.database.query(lambda c: waits.scores(c, asked)).scores)
    world.return_tree(tree_id, acting.epoch, "drain")
    ticket = world.one(schema.trees).ticket
    request = ts.ClaimTreeRequest(tree_id=tree_id, node_id="node-2", ticket=ticket)
    claimed = world.database.transact(
        lambda c: claim_batch.claim_one(c, request, world.now(), world.settings)
    )
    told += claimed.tree.scores
    assert len(told) == 4 and {score.score.reason for score in told} == {DIVERGED}
    assert set(acting.scores().values()) == {(UNSCORABLE, SAID)}
