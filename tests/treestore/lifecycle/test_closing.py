"""Scores and closing: a tree is closed exactly when it is grown and owes nothing."""

import itertools

from banyan.v1 import events_pb2, tree_pb2
from services.treestore.control import progress
from services.treestore.queries import trees
from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import CLOSED, GROWING, SCORING
from tests.treestore.forge import World


def _tree(world: World, tree_id: bytes) -> tree_pb2.Tree:
    return world.database.query(lambda c: trees.read(c, [tree_id]))[0]


def test_a_tree_closes_at_the_last_score_and_not_before(world: World) -> None:
    spec = world.forge.spec(scorers=["number", "regex"])
    epoch = world.open(spec)
    root = world.forge.root(spec)
    leaf = world.forge.child(root)
    world.ingest(world.forge.segments(root, leaf, epoch=epoch), world.forge.leaf(leaf, epoch=epoch))
    world.ingest(world.forge.score(leaf, scorer="number"))
    assert world.one(schema.trees).state == GROWING
    world.ingest(world.forge.grown(spec.tree_id, leaf, epoch=epoch))
    assert world.one(schema.trees).state == SCORING
    world.ingest(world.forge.score(leaf, 0.5, scorer="regex"))
    assert world.one(schema.trees).state == CLOSED
    assert world.one(schema.trees).mean_reward == 0.75


def test_grown_waits_for_every_listed_segment(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    first, second = world.forge.child(root, 0), world.forge.child(root, 1)
    world.ingest(world.forge.grown(spec.tree_id, first, second), world.forge.segments(root, first))
    world.ingest(world.forge.score(first), world.forge.score(second))
    assert world.one(schema.trees).state == GROWING
    world.ingest(world.forge.segments(second))
    assert world.one(schema.trees).state == CLOSED


def test_a_grown_tree_without_leaves_closes(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    world.ingest(world.forge.grown(spec.tree_id))
    assert world.one(schema.trees).state == CLOSED


def test_a_terminal_score_never_changes_and_a_later_one_is_kept(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    leaf = world.forge.child(root)
    first, second = world.forge.score(leaf, None), world.forge.score(leaf, 1.0)
    world.ingest(world.forge.segments(root, leaf), world.forge.leaf(leaf), first)
    world.ingest(second, second, first)
    score = _tree(world, spec.tree_id).scores[0].score
    assert score.state == tree_pb2.SCORE_STATE_UNSCORABLE and score.reason == "EXCEPTION"
    assert world.one(schema.late).reason == "SCORED_BEFORE"


def test_a_scorer_that_nobody_asked_and_a_value_that_is_none_are_buried(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    world.ingest(world.forge.segments(root), world.forge.leaf(root))
    world.ingest(world.forge.score(root, scorer="stranger"), world.forge.score(root, float("nan")))
    assert next(row.reason.split(":")[0] for row in world.rows(schema.dead)) == "SCORER_UNKNOWN"
    assert "finite" in world.rows(schema.dead)[1].reason
    assert not world.rows(schema.scores)


def test_progress_counts_what_happened(world: World) -> None:
    for ordinal, index in itertools.product(range(3), range(2)):
        spec = world.forge.spec(ordinal, index, size=2)
        if ordinal < 2:
            world.live(spec)
        else:
            world.open(spec)
    world.live(world.forge.spec(label="before-greedy"))
    read = world.database.query(lambda c: progress.read(c, world.forge.run_id, world.now()))
    assert (read.groups.opened, read.groups.open, read.groups.closed) == (3, 1, 2)
    samples = read.samples
    # Four closed trees: a prompt of 3 tokens, three segments of 4; two paths of 4 and 8.
    assert (samples.sampled_tokens, samples.path_tokens) == (4 * 12, 4 * 12)
    assert (samples.prompt_tokens, samples.prompt_path_tokens) == (12, 24)
    assert (samples.unique_tokens, samples.used_tokens) == (4 * 12, 4 * 12)
    assert (samples.leaves, samples.scored, samples.unscorable, samples.reward_sum) == (
        8,
        8,
        0,
        4.0,
    )
    evaluation = read.evals[0]
    assert (evaluation.label, evaluation.groups, evaluation.done) == ("before-greedy", 1, 1)
    assert (evaluation.scored, evaluation.correct, evaluation.reward_sum) == (2, 1, 1.0)
    assert read.growing_nodes == 1 and not read.HasField("step")


def test_a_listed_leaf_needs_no_word_of_its_own_to_be_scored(world: World) -> None:
    spec = world.forge.spec()
    world.open(spec)
    root = world.forge.root(spec)
    leaf = world.forge.child(root)
    world.ingest(
        world.forge.score(leaf),
        world.forge.segments(root, leaf),
        world.forge.grown(spec.tree_id, leaf),
    )
    assert world.one(schema.trees).state == CLOSED


def test_a_node_without_a_name_of_a_node_grows_nothing(world: World) -> None:
    """A name with a NUL would fail in PostgreSQL, with all that is stored beside it."""
    specs = [world.forge.spec(0), world.forge.spec(1)]
    for spec in specs:
        world.open(spec)
    good, bad = (world.forge.grown(spec.tree_id) for spec in specs)
    message = events_pb2.TreesGrown.FromString(bad.data)
    message.trees[0].node_id = "a\x00b"
    world.ingest(good, world.forge.item("grown", message))
    assert {row.tree_id: row.state for row in world.rows(schema.trees)} == {
        specs[0].tree_id: CLOSED,
        specs[1].tree_id: GROWING,
    }
    assert "must be 1 to 64 letters" in world.one(schema.dead).reason


def test_a_score_keeps_how_its_path_could_be_put_right(world: World) -> None:
    spec = world.forge.spec(scorers=["steps", "number"])
    epoch = world.open(spec)
    root = world.forge.root(spec)
    leaf = world.forge.child(root)
    world.ingest(world.forge.segments(root, leaf, epoch=epoch), world.forge.leaf(leaf, epoch=epoch))
    score = world.forge.score(leaf, 0.0, scorer="steps")
    message = events_pb2.LeavesScored.FromString(score.data)
    repair = tree_pb2.Repair(keep=3, text="2 + 2 = 4\n", step=2, steps=3)
    message.scores[0].scored.score.repair.CopyFrom(repair)
    world.ingest(world.forge.item("score", message), world.forge.score(leaf, 0.0))
    by_scorer = {s.scorer: s.score for s in _tree(world, spec.tree_id).scores}
    assert by_scorer["steps"].repair == repair and not by_scorer["number"].HasField("repair")
    message.scores[0].scored.score.repair.text = "x" * 20_000
    world.ingest(world.forge.item("score", message))
    assert "has 20000 characters" in world.one(schema.dead).reason


def test_a_segment_that_comes_after_the_end_of_growth_closes_nothing(world: World) -> None:
    """A branch that no listed path holds may come late: the leaf still lacks its score."""
    spec = world.forge.spec()
    epoch = world.open(spec)
    root = world.forge.root(spec)
    leaf, other = world.forge.child(root), world.forge.child(root, 1)
    world.ingest(world.forge.segments(root, leaf, epoch=epoch), world.forge.leaf(leaf, epoch=epoch))
    world.ingest(world.forge.grown(spec.tree_id, leaf, epoch=epoch))
    world.ingest(world.forge.segments(other, epoch=epoch))
    assert world.one(schema.trees).state == SCORING
    world.ingest(world.forge.score(leaf, 0.5))
    assert world.one(schema.trees).state == CLOSED and world.one(schema.trees).mean_reward == 0.5
