"""Batches, learner epochs and runs."""

import itertools

import pytest
from sqlalchemy import select

from banyan.errors import BanyanError, InvalidInput, NotReady, Refused
from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.messaging import subjects
from services.treestore.api import lineage
from services.treestore.control import processes, progress, runs
from services.treestore.loops import deadlines
from services.treestore.storage import schema
from services.treestore.training import batches, policies
from services.treestore.unit_of_work.rows import CONSUMED, DROPPED, GROWING, GroupState
from tests.treestore.forge import World


def _ready(world: World) -> ts.ReadyGroupsResponse:
    ask = ts.ReadyGroupsRequest(run_id=world.forge.run_id, use="train")
    return world.database.query(lambda c: batches.ready(c, ask))


def commit(
    world: World,
    ordinal: int,
    groups: list[str],
    epoch: int = 1,
) -> None:
    request = ts.CommitBatchRequest(
        run_id=world.forge.run_id,
        ordinal=ordinal,
        learner_epoch=epoch,
        use="train",
        group_ids=groups,
        summary_json='{"mean": 0}',
    )
    world.database.transact(lambda c: batches.commit(c, request, world.now(), world.settings))


def _refusal(world: World, *args: object, **more: object) -> str:
    before = {
        t.name: world.rows(t)
        for t in (schema.batches, schema.batch_trees, schema.trees, schema.groups, schema.outbox)
    }
    with pytest.raises(BanyanError) as refused:
        commit(world, *args, **more)  # type: ignore[arg-type]
    after = {
        t.name: world.rows(t)
        for t in (schema.batches, schema.batch_trees, schema.trees, schema.groups, schema.outbox)
    }
    assert before == after, "a refused batch must change nothing"
    return refused.value.reason


def closed_groups(world: World, ordinals: range, size: int = 2) -> list[str]:
    for ordinal, index in itertools.product(ordinals, range(size)):
        world.live(world.forge.spec(ordinal, index, size))
    return [world.forge.spec(o).group_id for o in ordinals]


def test_groups_become_ready_whole_and_in_order(world: World) -> None:
    world.live(world.forge.spec(1, 0))
    for index in range(2):
        world.live(world.forge.spec(0, index, 3))
    world.open(world.forge.spec(0, 2, 3))
    groups_ready = _ready(world)
    assert [g.ordinal for g in groups_ready.groups] == [1] and groups_ready.oldest_open == 0
    world.ingest(world.forge.grown(world.forge.spec(0, 2, 3).tree_id))
    groups_ready = _ready(world)
    assert [g.ordinal for g in groups_ready.groups] == [0, 1] and not groups_ready.HasField(
        "oldest_open"
    )
    assert list(groups_ready.groups[0].tree_ids) == [
        world.forge.spec(0, i, 3).tree_id for i in range(3)
    ]


def test_a_dropped_tree_leaves_its_group_which_still_closes(world: World) -> None:
    world.live(world.forge.spec(0, 0, 2))
    bad = world.forge.spec(0, 1, 2, max_claims=1)
    world.open(bad)
    world.silence()
    assert world.claim(bad.tree_id) == 0
    groups_ready = _ready(world)
    assert [list(g.tree_ids) for g in groups_ready.groups] == [[world.forge.spec(0, 0, 2).tree_id]]
    commit(world, 0, [bad.group_id])
    assert sorted(t.state for t in world.rows(schema.trees)) == [CONSUMED, DROPPED]


def test_a_batch_takes_its_trees_once(world: World) -> None:
    groups = closed_groups(world, range(4))
    world.database.transact(lambda c: c.execute(schema.outbox.delete()))
    commit(world, 0, groups[:2])
    (row,) = (row for row in world.rows(schema.outbox) if row.subject.endswith(".batch"))
    event = events_pb2.BatchReady.FromString(row.payload)
    assert (event.ordinal, event.learner_epoch, list(event.group_ids)) == (0, 1, groups[:2])
    assert _refusal(world, 1, [groups[0]]) == "ALREADY_USED"
    read = world.database.query(lambda c: batches.read(c, world.forge.run_id, 0))
    assert read is not None
    assert list(read.tree_ids) == [
        world.forge.spec(o, i, 2).tree_id for o in range(2) for i in range(2)
    ]
    assert read.summary_json == '{"mean": 0}'
    counts = world.database.query(
        lambda c: progress.read(c, world.forge.run_id, world.now())
    ).groups
    assert (counts.open, counts.closed, counts.consumed, counts.dropped) == (0, 2, 2, 0)
    assert [g.group_id for g in _ready(world).groups] == groups[2:]


def test_a_batch_that_drops_groups_is_refused(world: World) -> None:
    [group] = closed_groups(world, range(1))
    request = ts.CommitBatchRequest(
        run_id=world.forge.run_id,
        learner_epoch=1,
        use="train",
        dropped=[ts.DroppedGroup(group_id=group, reason="ZERO_VARIANCE")],
    )
    with pytest.raises(InvalidInput, match=r"CommitBatch\.dropped"):
        world.database.transact(lambda c: batches.commit(c, request, world.now(), world.settings))
    assert not world.rows(schema.batches) and world.one(schema.groups).state == GroupState.CLOSED


def test_the_same_commit_again_changes_nothing_and_another_one_is_refused(world: World) -> None:
    groups = closed_groups(world, range(2))
    commit(world, 0, groups[:1])
    outbox = len(world.rows(schema.outbox))
    commit(world, 0, groups[:1])
    assert len(world.rows(schema.batches)) == 1 and len(world.rows(schema.outbox)) == outbox
    assert _refusal(world, 0, groups[1:]) == "ORDINAL_TAKEN"


def test_ordinals_have_no_gap(world: World) -> None:
    groups = closed_groups(world, range(1))
    assert _refusal(world, 1, groups) == "WRONG_ORDINAL"
    commit(world, 0, groups)


def test_an_older_learner_commits_nothing(world: World) -> None:
    groups = closed_groups(world, range(2))
    commit(world, 0, groups[:1])
    take = rs.TakeLearnerEpochRequest(run_id=world.forge.run_id, learner_id="l2", checkpoint_step=0)
    answer = world.database.transact(lambda c: policies.take_epoch(c, take))
    assert (answer.epoch, answer.next_ordinal) == (2, 1)
    assert _refusal(world, 1, groups[1:], epoch=1) == "STALE_EPOCH"
    commit(world, 1, groups[1:], epoch=2)


def test_only_closed_training_groups_may_be_taken(world: World) -> None:
    world.live(world.forge.spec(label="before-greedy"))
    world.open(world.forge.spec(0))
    assert _refusal(world, 0, [world.forge.spec(label="before-greedy").group_id]) == "HELD_OUT"
    assert _refusal(world, 0, [world.forge.spec(0).group_id]) == "NOT_CLOSED"
    assert _refusal(world, 0, ["nobody"]) == "INVALID_INPUT"
    assert _refusal(world, 0, [world.forge.spec(0).group_id] * 2) == "INVALID_INPUT"


def test_a_held_out_row_is_refused_even_if_it_came_that_far(world: World) -> None:
    groups = closed_groups(world, range(1))
    digest = world.forge.spec(0).row_digest
    world.database.transact(lambda c: c.execute(schema.runs.update().values(held_out=digest)))
    assert _refusal(world, 0, groups) == "HELD_OUT"


def test_a_batch_without_groups_is_a_step_too(world: World) -> None:
    commit(world, 0, [])
    assert world.one(schema.runs).batches == 1


def test_other_uses_do_not_exist_yet(world: World) -> None:
    ask = ts.ReadyGroupsRequest(run_id=world.forge.run_id, use="replay")
    with pytest.raises(NotReady):
        world.database.query(lambda c: batches.ready(c, ask))


def test_ancestry_tells_the_path_and_the_scores_below(world: World) -> None:
    spec = world.forge.spec()
    world.live(spec)
    root = world.forge.root(spec)
    trunk = world.forge.child(root, 1)
    leaf = world.forge.child(trunk, 0)
    answer = world.database.query(lambda c: lineage.ancestry(c, leaf.id))
    assert [s.id for s in answer.segments] == [root.id, trunk.id, leaf.id]
    assert [s.leaf.segment for s in answer.scores] == [leaf.id] and answer.spec == spec
    assert len(world.database.query(lambda c: lineage.ancestry(c, root.id)).scores) == 2
    assert len(world.database.query(lambda c: lineage.ancestry(c, trunk.id)).segments) == 2


# -- runs --


def _move(world: World, source: int, target: int, epoch: int = 1, cause: str = "") -> rs.Run:
    request = rs.MoveRunRequest(
        run_id=world.forge.run_id,
        from_state=source,
        to_state=target,
        gateway_epoch=epoch,
        cause=cause,
    )
    return world.database.transact(lambda c: runs.move(c, request, world.now(), world.settings))


def test_a_run_is_moved_only_from_where_the_caller_thinks_it_is(world: World) -> None:
    with pytest.raises(Refused) as refused:
        _move(world, rs.RUN_STATE_STARTING, rs.RUN_STATE_TRAINING)
    assert refused.value.reason == "WRONG_STATE"
    with pytest.raises(Refused) as refused:
        _move(world, rs.RUN_STATE_TRAINING, rs.RUN_STATE_FAILED, epoch=0)
    assert refused.value.reason == "STALE_EPOCH"
    world.open(world.forge.spec())
    world.now.ms += 5
    run = _move(world, rs.RUN_STATE_TRAINING, rs.RUN_STATE_CANCELLED, cause="why")
    assert (run.state, run.cause, run.ended_unix_ms) == (
        rs.RUN_STATE_CANCELLED,
        "why",
        world.now.ms,
    )
    assert (world.one(schema.trees).state, world.one(schema.trees).reason) == (DROPPED, "RUN_OVER")
    world.ingest(world.forge.opened(world.forge.spec(1)))
    assert world.one(schema.refused).reason == "RUN_OVER"


def test_a_run_that_failed_is_taken_back_with_its_trees_its_queue_and_its_time(
    world: World,
) -> None:
    spec, run_id = world.forge.spec(), world.forge.run_id
    world.ingest(world.forge.opened(spec))
    for name in (run_id, "", "another-1"):
        gone = rs.ReportProcessRequest(
            run_id=name, service="learner", event=rs.PROCESS_EVENT_GIVEN_UP
        )
        world.database.transact(lambda c, gone=gone: processes.report(c, gone, world.now()))
    world.now.ms += 1000
    run = _move(world, rs.RUN_STATE_TRAINING, rs.RUN_STATE_FAILED, cause="why")
    assert (run.state, run.resume_state, run.ended_unix_ms) == (
        rs.RUN_STATE_FAILED,
        rs.RUN_STATE_TRAINING,
        world.now.ms,
    )
    world.now.ms += 10 * world.settings.requeue_ms
    _look(world)
    assert world.one(schema.trees).state == GROWING and len(_queued(world)) == 1, (
        "a run that is over asks for nothing"
    )
    world.now.ms += 90_000
    run = _move(world, rs.RUN_STATE_FAILED, rs.RUN_STATE_PAUSED)
    assert (run.state, run.resume_state, run.ended_unix_ms) == (
        rs.RUN_STATE_PAUSED,
        rs.RUN_STATE_TRAINING,
        0,
    )
    _move(world, rs.RUN_STATE_PAUSED, rs.RUN_STATE_TRAINING)
    _look(world)
    assert len(_queued(world)) == 2
    read = world.database.query(lambda c: runs.read(c, run_id, world.now()))
    assert (read.live_ms, list(read.given_up)) == (1000, [])
    left = world.database.query(lambda c: list(c.scalars(select(schema.processes.c.run_id))))
    assert left == ["another-1"]


def _look(world: World) -> None:
    world.database.transact(lambda c: deadlines.reconcile(c, world.now(), world.settings))


def _queued(world: World) -> list[int]:
    """Return the number of assignments in the outbox."""
    events = world.rows(schema.outbox)
    return [row.n for row in events if row.subject == subjects.growth(world.forge.run_id)]


def test_a_paused_run_remembers_its_state_and_its_time(world: World) -> None:
    world.now.ms += 1000
    run = _move(world, rs.RUN_STATE_TRAINING, rs.RUN_STATE_PAUSED)
    assert run.resume_state == rs.RUN_STATE_TRAINING
    world.now.ms += 50_000
    _move(world, rs.RUN_STATE_PAUSED, rs.RUN_STATE_TRAINING)
    world.now.ms += 500
    read = world.database.query(lambda c: runs.read(c, world.forge.run_id, world.now()))
    assert read.live_ms == 1500 and read.run.resume_state == 0


def test_a_run_is_put_once_and_found_by_prefix(world: World) -> None:
    put = rs.PutRunRequest(run=rs.Run(run_id="another-1"), request_id="first", gateway_epoch=1)
    repeated = world.database.transact(lambda c: runs.put(c, put, world.now(), world.settings))
    assert repeated.run_id == world.forge.run_id
    put = rs.PutRunRequest(run=world.forge.run(), request_id="second", gateway_epoch=1)
    with pytest.raises(Refused) as refused:
        world.database.transact(lambda c: runs.put(c, put, world.now(), world.settings))
    assert refused.value.reason == "RUN_EXISTS"
    assert world.database.query(lambda c: runs.read(c, "quick", 0)).run.run_id == world.forge.run_id
    with pytest.raises(LookupError):
        world.database.query(lambda c: runs.read(c, "", 0))
    dotted = rs.PutRunRequest(run=rs.Run(run_id="a.b"), request_id="third", gateway_epoch=1)
    with pytest.raises(InvalidInput, match="subject"):
        world.database.transact(lambda c: runs.put(c, dotted, world.now(), world.settings))
    for number in range(4):
        more = rs.PutRunRequest(
            run=rs.Run(run_id=f"more-{number}"), request_id=f"m{number}", gateway_epoch=1
        )
        world.database.transact(lambda c, more=more: runs.put(c, more, world.now(), world.settings))
        if number:
            message = (
                "more-0, more-1, more-2 and others; give"
                if number == 3
                else f"more-{number}; give more of the id$"
            )
            with pytest.raises(LookupError, match=message):
                world.database.query(lambda c: runs.read(c, "more-", 0))
