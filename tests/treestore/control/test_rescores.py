"""Scores that come after the run's own: kept beside them, once each, and without any effect."""

from typing import Any

import pytest

from banyan.errors import InvalidInput, NotFound
from banyan.segment import Segment
from banyan.tree import Leaf
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_to_wire
from services.treestore.control import removal, rescores, runs
from services.treestore.queries import rescore_comparison, trees
from services.treestore.queries import rescores as queries
from services.treestore.storage import schema
from tests.treestore.forge import World

SCORED, UNSCORABLE = tree_pb2.SCORE_STATE_SCORED, tree_pb2.SCORE_STATE_UNSCORABLE


def rescorer(world: World, **more: Any) -> rs.Rescorer:
    fields = {"scorer": "length", "version": "2", "settings_json": '{"most": 4, "least": 1}'}
    return rs.Rescorer(**{"run_id": world.forge.run_id, **fields, **more})


def score(end: Segment, value: float | None, **parts: float) -> rs.RescoredLeaf:
    known = tree_pb2.Score(state=SCORED, value=value or 0.0, parts=parts)
    unknown = tree_pb2.Score(state=UNSCORABLE, reason="EXCEPTION: no")
    return rs.RescoredLeaf(
        tree_id=end.tree_id,
        leaf=leaf_to_wire(Leaf(end.id, len(end))),
        score=unknown if value is None else known,
        duration_ms=2.5,
    )


def put(world: World, scorer: rs.Rescorer, *leaves: rs.RescoredLeaf) -> int:
    request = rs.PutRescoresRequest(rescorer=scorer, leaves=leaves)
    return world.database.transact(lambda c: rescores.put(c, request, world.now())).stored


def lacking(world: World, scorer: rs.Rescorer) -> list[tuple[bytes, str]]:
    request = rs.ReadLeavesToRescoreRequest(rescorer=scorer)
    answer = world.database.query(lambda c: queries.leaves(c, request))
    assert answer.done
    return [(leaf.leaf.segment, leaf.completion) for leaf in answer.leaves]


def compared(world: World, scorer: rs.Rescorer) -> rs.CompareRescoresResponse:
    request = rs.CompareRescoresRequest(rescorer=scorer)
    return world.database.query(lambda c: rescore_comparison.compare(c, request))


def closed(world: World, ordinal: int, *values: float | None) -> list[Segment]:
    """Ingest a closed tree with a leaf for each value."""
    forge, spec = world.forge, world.forge.spec(ordinal)
    epoch, root = world.open(spec), forge.root(spec)
    ends = [forge.child(root, number) for number in range(len(values))]
    world.ingest(forge.segments(root, *ends, epoch=epoch))
    world.ingest(*(forge.leaf(end, epoch=epoch) for end in ends))
    world.ingest(forge.grown(spec.tree_id, *ends, epoch=epoch))
    world.ingest(*(forge.score(end, value) for end, value in zip(ends, values, strict=True)))
    return ends


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_leaves_of_closed_trees_lack_a_score_until_they_have_it(world: World) -> None:
    first, second = closed(world, 0, 1.0, 0.0)
    world.open(world.forge.spec(1))  # it grows
    scorer = rescorer(world)
    assert lacking(world, scorer) == [(first.id, "<0>"), (second.id, "<1>")]
    assert put(world, scorer, score(second, 0.5)) == 1
    assert lacking(world, scorer) == [(first.id, "<0>")]
    other = [rescorer(world, version="3"), rescorer(world, settings_json="{}")]
    other.append(rescorer(world, scorer="number"))
    assert [len(lacking(world, each)) for each in other] == [2, 2, 2]


def test_the_same_score_again_changes_nothing_and_settings_have_one_order(world: World) -> None:
    (end,) = closed(world, 0, 1.0)
    assert put(world, rescorer(world), score(end, 0.5), score(end, 0.75)) == 1
    turned = rescorer(world, settings_json='{"least":1,  "most":4}')
    assert put(world, turned, score(end, 0.25)) == 0
    row = world.one(schema.rescores)
    assert (row.value, row.settings) == (0.5, '{"least":1,"most":4}')


def test_both_scores_are_in_the_tree_and_nothing_of_it_changes(world: World) -> None:
    (end,) = closed(world, 0, 1.0)
    watched = (schema.trees, schema.scores, schema.groups, schema.tallies, schema.counts)
    before = [world.rows(table) for table in (*watched, schema.outbox)]
    put(world, rescorer(world), score(end, 0.5, words=3.0))
    assert [world.rows(table) for table in (*watched, schema.outbox)] == before
    (plain,) = world.database.query(lambda c: trees.read(c, [end.tree_id]))
    (shown,) = world.database.query(lambda c: trees.read(c, [end.tree_id], rescores=True))
    assert not plain.rescores
    (again,) = shown.rescores
    assert (again.scored.scorer, again.scored.scorer_version) == ("length", "2")
    assert again.scored.score.value == 0.5 and again.scored.score.parts == {"words": 3.0}
    shown.ClearField("rescores")
    assert shown == plain and shown.scores[0].score.value == 1.0


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_a_comparison_is_by_hand(world: World) -> None:
    right, wrong, unscorable, last = closed(world, 0, 1.0, 0.25, None, 1.0)
    scorer = rescorer(world)
    put(world, scorer, score(right, 0.5), score(wrong, 0.75), score(unscorable, 1.0))
    answer = compared(world, scorer)
    # right → wrong, wrong → wrong, and no verdict → right; the last one was not scored again.
    assert (answer.leaves, answer.rescored, answer.changed, answer.compared) == (4, 3, 1, 2)
    assert (answer.old_scored, answer.old_sum) == (2, 1.25)
    assert (answer.new_scored, answer.new_sum) == (3, 2.25)
    put(world, scorer, score(last, None))
    answer = compared(world, scorer)
    assert (answer.rescored, answer.changed, answer.compared) == (4, 1, 2)
    assert answer.new_scored == 3 and sum(answer.reasons.values()) == 1


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_a_scorer_of_the_run_is_compared_with_its_own_scores(world: World) -> None:
    forge = world.forge
    spec = forge.spec(0, scorers=["length", "number"], scorer_weights=[1.0, 3.0])
    epoch, root = world.open(spec), forge.root(spec)
    end = forge.child(root)
    world.ingest(forge.segments(root, end, epoch=epoch), forge.leaf(end, epoch=epoch))
    world.ingest(forge.grown(spec.tree_id, end, epoch=epoch))
    world.ingest(forge.score(end, 0.0), forge.score(end, 1.0, scorer="length"))
    assert world.one(schema.trees).mean_reward == 0.25
    put(world, rescorer(world), score(end, 1.0))
    put(world, rescorer(world, scorer="regex"), score(end, 1.0))
    assert compared(world, rescorer(world)).old_sum == 1.0
    assert compared(world, rescorer(world, scorer="regex")).old_sum == 0.25


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_answers_go_on_after_their_last_tree(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "TREES", 2)
    monkeypatch.setattr(rescore_comparison, "TREES", 2)
    ends = [closed(world, ordinal, 1.0)[0] for ordinal in range(5)]
    request = rs.ReadLeavesToRescoreRequest(rescorer=rescorer(world))
    seen: list[list[bytes]] = []
    done = False
    while not done:
        answer = world.database.query(lambda c: queries.leaves(c, request))
        seen.append([leaf.leaf.segment for leaf in answer.leaves])
        request.after, done = answer.last, answer.done
    assert seen == [[ends[0].id, ends[1].id], [ends[2].id, ends[3].id], [ends[4].id]]


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "fields",
    [
        {"settings_json": "[1]"},
        {"settings_json": "{"},
        {"version": ""},
        {"scorer": ""},
    ],
)
def test_a_scorer_that_is_none_is_refused(world: World, fields: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        lacking(world, rescorer(world, **fields))


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_scores_of_other_runs_and_numbers_that_are_none_are_refused(world: World) -> None:
    (end,) = closed(world, 0, 1.0)
    with pytest.raises(NotFound, match="no leaf"):
        put(world, rescorer(world, run_id="another-1"), score(end, 1.0))
    with pytest.raises(InvalidInput, match="finite"):
        put(world, rescorer(world), score(end, float("nan")))
    with pytest.raises(InvalidInput, match="at most 256"):
        put(world, rescorer(world), *[score(end, 1.0)] * 257)
    assert not world.rows(schema.rescores)


def test_they_go_with_the_trees_of_their_run(world: World) -> None:
    (end,) = closed(world, 0, 1.0)
    put(world, rescorer(world), score(end, 1.0))
    move = rs.MoveRunRequest(
        run_id=world.forge.run_id,
        from_state=rs.RUN_STATE_TRAINING,
        to_state=rs.RUN_STATE_CANCELLED,
        gateway_epoch=1,
    )
    world.database.transact(lambda c: runs.move(c, move, world.now(), world.settings))
    world.database.transact(lambda c: removal.step(c, world.forge.run_id, rs.KEPT_METRICS))
    assert not world.rows(schema.rescores) and not world.rows(schema.trees)
