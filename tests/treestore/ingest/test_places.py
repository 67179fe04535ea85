"""Scores of places inside a path: stored as they come, owed where the place was put before scorers,
never waited for in vain.
"""

import random
from collections.abc import Sequence

import pytest

from banyan.segment import Segment
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.segments import facts_from_wire, leaf_to_wire
from services.treestore.control import growth_budgets
from services.treestore.loops import deadlines
from services.treestore.queries import transcripts, trees
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import CLOSED, GROWING, SCORING
from tests.treestore.forge import World


class Chain:
    """A prompt, a program, and a continuation: the program's end is a place from which the path
    continues.
    """

    def __init__(self, world: World, **more: object) -> None:
        self.world, self.forge = world, world.forge
        self.spec = self.forge.spec(**more)
        self.epoch = world.open(self.spec)
        self.root = self.forge.root(self.spec)
        self.program = self.forge.child(self.root)
        self.last = self.forge.child(self.program)
        self.place = Leaf(self.program.id, len(self.program))
        world.ingest(self.forge.segments(self.root, self.program, self.last, epoch=self.epoch))

    def marked(self, segment: Segment | None = None) -> None:
        self.world.ingest(self.forge.leaf(segment or self.program, epoch=self.epoch))

    def ended(self, inside: Sequence[Leaf] = ()) -> None:
        item = self.forge.grown(self.spec.tree_id, self.last, epoch=self.epoch)
        message = events_pb2.TreesGrown.FromString(item.data)
        message.trees[0].inside.extend(leaf_to_wire(place) for place in inside)
        self.world.ingest(
            self.forge.leaf(self.last, epoch=self.epoch), self.forge.item("grown", message)
        )

    def scored(self, segment: Segment, value: float | None = 1.0, scorer: str = "number") -> None:
        self.world.ingest(self.forge.score(segment, value, scorer))

    @property
    def state(self) -> int:
        return int(self.world.one(schema.trees, tree_id=self.spec.tree_id).state)

    @property
    def tree(self) -> tree_pb2.Tree:
        return self.world.database.query(lambda c: trees.read(c, [self.spec.tree_id]))[0]

    @property
    def own(self) -> dict[Leaf, float]:
        return dict(facts_from_wire(self.tree).rewards)

    def look(self) -> None:
        self.world.database.transact(
            lambda c: deadlines.reconcile(c, self.world.now(), self.world.settings)
        )

    def asked(self, segment: Segment) -> list[str]:
        """Return the scorers that a verifier is asked to run on a place."""
        key = ts.LeafKey(
            tree_id=self.spec.tree_id,
            leaf=leaf_to_wire(Leaf(segment.id, len(segment))),
            claim_epoch=self.epoch,
        )
        (transcript,) = self.world.database.query(lambda c: transcripts.read(c, [key]))
        return list(transcript.scorers)


def test_a_score_of_a_place_that_is_no_leaf_is_stored_and_not_parked(world: World) -> None:
    chain = Chain(world)
    chain.scored(chain.program, 0.25)
    assert not world.rows(schema.parked) and len(world.rows(schema.scores)) == 1
    chain.ended()
    assert chain.state == SCORING, "the leaf lacks its score"
    chain.scored(chain.last)
    assert chain.state == CLOSED and chain.own == {chain.place: 0.25}
    assert world.one(schema.trees).mean_reward == 1.0, "a place is no leaf"


def test_a_grown_tree_waits_for_a_place_that_was_put_before_scorers(world: World) -> None:
    chain = Chain(world)
    chain.marked()
    chain.ended()
    chain.scored(chain.last)
    assert chain.state == SCORING and chain.asked(chain.program) == ["number"]
    chain.scored(chain.program, 0.5)
    assert chain.state == CLOSED and chain.own == {chain.place: 0.5}


def test_the_end_of_growth_names_the_places_whatever_comes_late(world: World) -> None:
    """LeafFinished of the place was lost on the way, and comes after the leaf's score: the tree
    waited for it.
    """
    chain = Chain(world)
    chain.ended(inside=[chain.place])
    chain.scored(chain.last)
    assert chain.state == SCORING and chain.asked(chain.program) == ["number"]
    chain.marked()
    chain.scored(chain.program, 0.5)
    assert chain.state == CLOSED and chain.own == {chain.place: 0.5} and len(chain.tree.leaves) == 1


def test_a_named_place_that_is_never_scored_ends_with_the_deadline(world: World) -> None:
    """A place off every path is owed nothing."""
    chain = Chain(world)
    chain.ended(inside=[chain.place, Leaf(chain.root.id, 0)])
    chain.scored(chain.last)
    world.now.ms += chain.spec.score_deadline_ms
    chain.look()
    assert chain.state == CLOSED and facts_from_wire(chain.tree).unscorable == {chain.place}


def test_the_end_of_growth_names_places_of_its_own_tree_alone(world: World) -> None:
    other, chain = Chain(world, ordinal=1), Chain(world)
    chain.ended(inside=[other.place])
    assert chain.state == GROWING and world.one(schema.dead).reason.startswith("TREE_MISMATCH")
    chain.ended(inside=[chain.place])
    assert chain.state == SCORING


def test_a_place_that_no_path_goes_on_from_is_owed_nothing(world: World) -> None:
    chain = Chain(world)
    other = world.forge.child(chain.root, 1)
    world.ingest(world.forge.segments(other, epoch=chain.epoch))
    chain.marked(other)
    chain.ended()
    chain.scored(chain.last)
    assert chain.state == CLOSED and not chain.own
    assert chain.asked(other) == [], "a tree that is over takes no more scores"


def test_a_place_within_a_segment_counts_where_a_path_goes_past_it(world: World) -> None:
    """(program, 2) lies on the path to the last segment; (last, 4) is the leaf, and (program, 0) is
    the prompt's end.
    """
    chain = Chain(world)
    for end, value in ((0, 0.125), (2, 0.75)):
        leaf = leaf_to_wire(Leaf(chain.program.id, end))
        score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value)
        scored = tree_pb2.ScoredLeaf(leaf=leaf, scorer="number", scorer_version="1", score=score)
        messages = events_pb2.LeafScored(
            run_id=world.forge.run_id, tree_id=chain.spec.tree_id, scored=scored
        )
        world.ingest(world.forge.item("score", events_pb2.LeavesScored(scores=[messages])))
    chain.ended()
    chain.scored(chain.last)
    assert chain.state == CLOSED
    assert chain.own == {Leaf(chain.root.id, 3): 0.125, Leaf(chain.program.id, 2): 0.75}


def test_control_that_gives_room_hears_of_leaves_alone(world: World) -> None:
    chain = Chain(world)
    chain.scored(chain.program, 0.25)
    request = rs.ReadRoomsRequest(run_id=world.forge.run_id, block=1)

    def heard() -> list[bytes]:
        (fact,) = world.database.query(lambda c: growth_budgets.facts(c, request, world.now()))
        return [score.leaf.segment for score in fact.scores]

    assert heard() == []
    chain.marked(chain.last)
    chain.scored(chain.last)
    assert heard() == [chain.last.id]


def test_a_place_has_a_reward_once_all_scorers_have_spoken(world: World) -> None:
    chain = Chain(world, scorers=["number", "regex"])
    chain.marked()
    chain.ended()
    chain.scored(chain.program, 0.25)
    chain.scored(chain.last)
    chain.scored(chain.last, 1.0, "regex")
    assert chain.state == SCORING and not chain.own
    chain.scored(chain.program, 0.75, "regex")
    assert chain.state == CLOSED and chain.own == {chain.place: 0.5}


def test_scorers_of_whole_groups_say_nothing_of_places(world: World) -> None:
    chain = Chain(world, scorers=["number", "majority"], group_scorers=["majority"])
    chain.marked()
    chain.ended()
    for scorer in ("number", "majority"):
        chain.scored(chain.last, 1.0, scorer)
    assert chain.state == SCORING
    chain.scored(chain.program, 0.5)
    assert chain.state == CLOSED and chain.own == {chain.place: 0.5}


def test_a_place_without_a_score_is_asked_for_again_and_given_up_by_the_deadline(
    world: World,
) -> None:
    chain = Chain(world)
    chain.marked()
    chain.ended()
    chain.scored(chain.last)
    before = len(world.rows(schema.outbox))
    world.now.ms += chain.spec.score_deadline_ms // 2
    chain.look()
    messages = [
        events_pb2.LeavesFinished.FromString(row.payload)
        for row in world.rows(schema.outbox)[before:]
    ]
    assert [
        Leaf(leaf_message.leaf.segment, leaf_message.leaf.end)
        for message in messages
        for leaf_message in message.leaves
    ] == [chain.place]
    world.now.ms += chain.spec.score_deadline_ms
    chain.look()
    assert chain.state == CLOSED and not chain.own
    assert facts_from_wire(chain.tree).unscorable == {chain.place}, "never a reward of 0"
    assert {s.score.reason for s in chain.tree.scores if s.leaf.segment == chain.program.id} == {
        "DEADLINE"
    }


def test_a_score_of_a_tree_that_is_over_is_kept_as_late_and_changes_nothing(world: World) -> None:
    chain = Chain(world)
    chain.ended()
    chain.scored(chain.last)
    before = chain.tree
    chain.scored(chain.program, 0.5)
    chain.scored(world.forge.child(chain.last), 0.5)  # of a segment that never came
    assert chain.state == CLOSED and chain.tree == before and not world.rows(schema.parked)
    assert [row.reason for row in world.rows(schema.late)] == ["TREE_CLOSED"] * 2


def test_a_score_waits_for_its_segment_alone_and_beyond_it_there_is_no_place(world: World) -> None:
    chain = Chain(world)
    more = world.forge.child(chain.last)
    chain.scored(more, 0.5)
    assert len(world.rows(schema.parked)) == 1
    world.ingest(world.forge.segments(more, epoch=chain.epoch))
    assert not world.rows(schema.parked) and len(world.rows(schema.scores)) == 1
    longer = world.forge.child(chain.program, 0, length=9)
    wrong = world.forge.score(longer)
    message = events_pb2.LeavesScored.FromString(wrong.data)
    message.scores[0].scored.leaf.segment = chain.program.id
    world.ingest(world.forge.item("score", message))
    assert world.one(schema.dead).reason.startswith("BAD_END") and chain.state == GROWING


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_in_any_order_the_tree_closes_and_no_score_is_lost(world: World, seed: int) -> None:
    """Each score of the place counts or is kept as late; no event is parked or a dead letter."""
    forge, spec = world.forge, world.forge.spec()
    epoch, root = world.open(spec), forge.root(spec)
    program, last = forge.child(root), forge.child(forge.child(root))
    items = [
        forge.segments(root, epoch=epoch),
        forge.segments(program, epoch=epoch),
        forge.segments(last, epoch=epoch),
        forge.leaf(program, epoch=epoch),
        forge.leaf(last, epoch=epoch),
        forge.grown(spec.tree_id, last, epoch=epoch),
        forge.score(program, 0.5),
        forge.score(last, 1.0),
    ]
    rng = random.Random(seed)
    rng.shuffle(items)
    size = rng.randint(1, 3)
    for start in range(0, len(items), size):
        world.ingest(*items[start : start + size])
    assert world.one(schema.trees).state == CLOSED
    assert (
        not world.rows(schema.parked)
        and not world.rows(schema.dead)
        and not world.rows(schema.refused)
    )
    (tree,) = world.database.query(lambda c: trees.read(c, [spec.tree_id]))
    own, late = facts_from_wire(tree).rewards, world.rows(schema.late)
    assert (own == {Leaf(program.id, 4): 0.5}) != bool(late) and len(
        world.rows(schema.scores)
    ) + len(late) == 2
