"""The whole service in this process, from the log to the answers: NATS, gRPC, SQLite."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from banyan.errors import InvalidInput, NotReady, Refused
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.consumer import Consumer
from services.chassis.rpc import rpc
from services.treestore.ingest.item import Item
from services.treestore.lifecycle import claim_batch
from services.treestore.loops.maintenance import Maintenance
from services.treestore.service import running
from services.treestore.storage.settings import Settings
from tests.treestore.client import Store


async def test_waits_for_several_trees_are_answered_together(store: Store) -> None:
    specs = [store.forge.spec(ordinal) for ordinal in range(2)]
    for spec in specs:
        await store.grow(spec)
    asks = [ts.AwaitIngestedRequest(tree_id=spec.tree_id, epoch=1, grown=True) for spec in specs]
    asks.append(ts.AwaitIngestedRequest(tree_id=b"?" * 32, epoch=1))
    request = ts.AwaitTreesIngestedRequest(trees=asks, deadline_ms=5000)
    outcomes = (await rpc.call(store.trees.AwaitTreesIngested, request)).outcomes
    assert [(o.answer.grown, o.refused) for o in outcomes] == [
        (True, ""),
        (True, ""),
        (False, "NOT_FOUND"),
    ]
    request.trees[2].CopyFrom(asks[1])
    request.trees[2].segment_ids.append(b"!" * 32)
    request.deadline_ms = 50
    outcomes = (await rpc.call(store.trees.AwaitTreesIngested, request)).outcomes
    assert [list(o.answer.missing) for o in outcomes] == [[], [], [b"!" * 32]]
    with pytest.raises(InvalidInput, match="65 trees at once"):
        await rpc.call(
            store.trees.AwaitTreesIngested, ts.AwaitTreesIngestedRequest(trees=[asks[0]] * 65)
        )


async def test_from_opening_to_batch_over_the_wire(store: Store, eventually) -> None:
    forge = store.forge
    for ordinal in range(2):
        await store.grow(forge.spec(ordinal))
    closed = [
        d
        async for d in _first(
            store.bus, subjects.LINEAGE, [subjects.lineage(forge.run_id, "closed")], 1
        )
    ]
    assert closed[0].decode(events_pb2.TreesClosed).trees[0].group_closed
    ask = ts.ReadyGroupsRequest(run_id=forge.run_id, use="train")

    async def both() -> bool:
        return len((await rpc.call(store.trees.ReadyGroups, ask)).groups) == 2

    await eventually(both)
    ready = await rpc.call(store.trees.ReadyGroups, ask)
    assert [g.ordinal for g in ready.groups] == [0, 1] and not ready.HasField("oldest_open")
    commit = ts.CommitBatchRequest(
        run_id=forge.run_id,
        ordinal=0,
        learner_epoch=1,
        use="train",
        group_ids=[g.group_id for g in ready.groups],
    )
    await rpc.call(store.trees.CommitBatch, commit)
    batch = [
        d
        async for d in _first(store.bus, subjects.TRAIN, [subjects.train(forge.run_id, "batch")], 1)
    ]
    assert batch[0].decode(events_pb2.BatchReady).group_ids == commit.group_ids
    trees = [
        t.tree
        async for t in store.trees.StreamTrees(
            ts.StreamTreesRequest(filter=ts.TreeFilter(run_id=forge.run_id))
        )
    ]
    assert [t.state for t in trees] == [tree_pb2.TREE_STATE_CONSUMED] * 2
    with pytest.raises(Refused) as refused:
        commit.ordinal = 1
        await rpc.call(store.trees.CommitBatch, commit)
    assert refused.value.reason == "ALREADY_USED"


async def _first(bus: Bus, stream: str, filters: list[str], count: int) -> AsyncIterator[object]:
    listening = bus.listen(stream, filters)
    for _ in range(count):
        yield await asyncio.wait_for(anext(listening), 10)
    await listening.aclose()


async def test_growth_messages_reach_the_work_queue(store: Store) -> None:
    spec = store.forge.spec(wave="w", wave_size=4, min_step=2)
    await store.publish(store.forge.opened(spec))
    consumer = await store.bus.consumer(
        subjects.GROWTH, "nodes", [subjects.growth(store.forge.run_id)]
    )
    delivery = (await consumer.fetch(1, 10.0))[0]
    grow = delivery.decode(events_pb2.GrowTree)
    assert grow == events_pb2.GrowTree(
        run_id=spec.run_id, tree_id=spec.tree_id, min_step=2, wave="w", wave_size=4, ticket=1
    )


async def test_claims_that_come_together_have_each_their_own_outcome(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [store.forge.spec(ordinal) for ordinal in range(3)]
    for spec in specs:
        await store.publish(store.forge.opened(spec))
        assert await store.claim(spec.tree_id) == 1
        await store.publish(store.forge.segments(store.forge.root(spec)))
        wait = ts.AwaitIngestedRequest(
            tree_id=spec.tree_id,
            epoch=1,
            segment_ids=[store.forge.root(spec).id],
            deadline_ms=9_000,
        )
        assert not (await rpc.call(store.trees.AwaitIngested, wait)).missing
    ids = [specs[0].tree_id, b"x" * 32, specs[1].tree_id, specs[0].tree_id]
    ask = ts.ClaimTreesRequest(
        claims=[ts.ClaimTreeRequest(tree_id=i, node_id="n", ticket=1) for i in ids]
    )
    outcomes = (await rpc.call(store.trees.ClaimTrees, ask)).outcomes
    assert [(o.refused, o.claim.epoch, o.claim.tree.spec.tree_id) for o in outcomes] == [
        ("", 2, ids[0]), ("NOT_FOUND", 0, b""), ("", 2, ids[2]), ("", 3, ids[0])
    ]  # fmt: skip
    assert all(len(o.claim.tree.segments) == 1 for o in outcomes if not o.refused)
    monkeypatch.setattr(claim_batch, "MAX_BYTES", 1)
    ask = ts.ClaimTreesRequest(
        claims=[ts.ClaimTreeRequest(tree_id=s.tree_id, node_id="n", ticket=1) for s in specs]
    )
    outcomes = (await rpc.call(store.trees.ClaimTrees, ask)).outcomes
    assert [o.refused for o in outcomes] == ["", "LATER", "LATER"]
    ask = ts.ClaimTreesRequest(
        claims=[ts.ClaimTreeRequest(tree_id=ids[0], node_id="n", ticket=1)] * 65
    )
    with pytest.raises(InvalidInput, match="at most 64"):
        await rpc.call(store.trees.ClaimTrees, ask)


async def test_await_ingested_names_what_is_missing_and_returns_as_soon_as_it_is_there(
    store: Store,
) -> None:
    forge, spec = store.forge, store.forge.spec()
    await store.publish(forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    ask = ts.AwaitIngestedRequest(
        tree_id=spec.tree_id, epoch=epoch, segment_ids=[root.id], deadline_ms=50
    )
    assert list((await rpc.call(store.trees.AwaitIngested, ask)).missing) == [root.id]
    ask.deadline_ms = 20_000
    waiting = asyncio.ensure_future(rpc.call(store.trees.AwaitIngested, ask, deadline_s=25))
    await store.publish(forge.segments(root, epoch=epoch))
    answer = await asyncio.wait_for(waiting, 5)
    assert not answer.missing and not answer.grown
    await rpc.call(
        store.trees.ClaimTree, ts.ClaimTreeRequest(tree_id=spec.tree_id, node_id="other", ticket=1)
    )
    with pytest.raises(Refused) as refused:
        await rpc.call(store.trees.AwaitIngested, ask)
    assert refused.value.reason == "STALE_EPOCH"


async def test_await_ingested_names_the_winner_of_a_place(store: Store) -> None:
    forge, spec = store.forge, store.forge.spec()
    await store.publish(forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    winner, loser = forge.child(root, 0), forge.child(root, 0, length=7)
    await store.publish(forge.segments(root, winner, loser, epoch=epoch))
    ask = ts.AwaitIngestedRequest(
        tree_id=spec.tree_id, epoch=epoch, segment_ids=[winner.id, loser.id], deadline_ms=9000
    )
    answer = await rpc.call(store.trees.AwaitIngested, ask, deadline_s=10)
    assert not answer.missing
    assert [(r.segment, r.reason, r.winner) for r in answer.refused] == [
        (loser.id, "ORDINAL_TAKEN", winner.id)
    ]


async def test_desired_processes_are_watched_without_polling(store: Store) -> None:
    first = await rpc.call(
        store.runs.WatchDesired, rs.WatchDesiredRequest(revision=0, deadline_ms=5000)
    )
    assert first.revision > 0 and not first.processes
    ask = rs.WatchDesiredRequest(revision=first.revision, deadline_ms=20_000)
    waiting = asyncio.ensure_future(rpc.call(store.runs.WatchDesired, ask, deadline_s=25))
    wish = rs.DesiredProcess(run_id=store.forge.run_id, service="rollout", count=2)
    wanted = rs.SetDesiredRequest(run_id=store.forge.run_id, processes=[wish], gateway_epoch=1)
    await rpc.call(store.runs.SetDesired, wanted)
    answer = await asyncio.wait_for(waiting, 5)
    assert answer.revision == first.revision + 1 and list(answer.processes) == [wish]
    await rpc.call(store.runs.SetDesired, wanted)  # nothing changed
    ask = rs.WatchDesiredRequest(revision=answer.revision, deadline_ms=30)
    assert (await rpc.call(store.runs.WatchDesired, ask)).revision == answer.revision


async def test_a_dead_letter_is_listed_and_replayed(store: Store, eventually) -> None:
    forge, spec = store.forge, store.forge.spec()
    bad = forge.item("segment", events_pb2.TreeGrown(run_id="x" * 40))
    bad = Item(bad.subject, b"\xff" * 7, bad.sequence)
    await store.publish(bad)

    async def listed() -> bool:
        return len((await rpc.call(store.runs.ReadDead, rs.ReadDeadRequest())).letters) == 1

    await eventually(listed)
    letter = (await rpc.call(store.runs.ReadDead, rs.ReadDeadRequest())).letters[0]
    assert (
        letter.letter.payload == bad.data
        and letter.letter.subject == bad.subject
        and not letter.replayed
    )
    await rpc.call(store.runs.ReplayDead, rs.ReplayDeadRequest(id=letter.id))

    async def replayed() -> bool:  # it comes back as a new message, and is as bad as before
        letters = (await rpc.call(store.runs.ReadDead, rs.ReadDeadRequest())).letters
        return len(letters) == 2 and letters[1].replayed

    await eventually(replayed)
    await store.grow(spec)  # and nothing was held up


async def test_letters_of_other_services_and_advisories_become_rows(
    store: Store, eventually
) -> None:
    letter = events_pb2.DeadLetter(
        stream="LINEAGE",
        subject="lineage.x.leaf",
        sequence=7,
        payload=b"p",
        reason="why",
        service="verifier",
    )
    await store.bus.publish(subjects.dead("LINEAGE"), letter, "letter-7")

    async def listed() -> bool:
        letters = (await rpc.call(store.runs.ReadDead, rs.ReadDeadRequest())).letters
        return [x.letter for x in letters] == [letter]

    await eventually(listed)


async def test_a_run_comes_with_its_progress_where_that_is_asked_for(
    store: Store, eventually
) -> None:
    await store.grow(store.forge.spec())
    run_id = store.forge.run_id

    async def read() -> rs.ReadProgressResponse:
        return await rpc.call(store.runs.ReadProgress, rs.ReadProgressRequest(run_id=run_id))

    async def closed() -> bool:  # after the trees that `grow` waits for, scores still come in
        return (await read()).groups.closed == 1

    await eventually(closed)
    progress = await read()
    wanted = rs.ReadRunRequest(run_id=run_id, with_progress=True)
    answer = await rpc.call(store.runs.ReadRun, wanted)
    assert answer.run.run_id == run_id and answer.progress == progress
    bare = await rpc.call(store.runs.ReadRun, rs.ReadRunRequest(run_id=run_id))
    joined = await rpc.call(store.runs.ReadRun, wanted, metadata=[(rpc.RUN_KEY, run_id)])
    assert not bare.HasField("progress") and not joined.HasField("progress")


async def test_errors_keep_their_reason_over_the_wire(store: Store) -> None:
    with pytest.raises(NotReady):
        await rpc.call(
            store.trees.ReadyGroups, ts.ReadyGroupsRequest(run_id=store.forge.run_id, use="swarm")
        )
    with pytest.raises(InvalidInput, match="too short"):
        await rpc.call(store.trees.GetTree, ts.GetTreeRequest(tree_id=b"ab"))
    with pytest.raises(LookupError, match="no run"):
        await rpc.call(store.runs.ReadRun, rs.ReadRunRequest(run_id="nobody"))


async def test_a_reader_serves_beside_the_writer_and_refuses_to_write(
    store: Store, nats_server, tmp_path: Path
) -> None:
    await store.grow(store.forge.spec())
    settings = Settings(
        listen="127.0.0.1:0", state=tmp_path / "state", read_only=True, nats="nats://127.0.0.1:1"
    )
    async with running(settings) as (server, loops):
        assert loops is None
        async with grpc.aio.insecure_channel(server.address) as channel:
            listed = await rpc.call(TreeStoreServiceStub(channel).ListTrees, ts.ListTreesRequest())
            assert len(listed.trees) == 1
            with pytest.raises(Refused) as refused:
                await rpc.call(
                    RunStoreServiceStub(channel).TakeGatewayEpoch, rs.TakeGatewayEpochRequest()
                )
            assert refused.value.reason == "READ_ONLY"


async def test_a_store_that_ends_by_a_fault_gives_back_what_it_had_not_fetched_too(
    nats_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = list[str](), Consumer.close

    async def noted(consumer: Consumer) -> None:
        await close(consumer)
        closed.append(consumer._stream)

    async def fails(_: Maintenance) -> None:
        raise RuntimeError("a loop broke")

    monkeypatch.setattr(Consumer, "close", noted)
    settings = Settings(nats=nats_server.url, listen="127.0.0.1:0", state=tmp_path / "state")
    async with running(settings):
        pass
    assert closed == [subjects.LINEAGE, subjects.DEAD]
    monkeypatch.setattr(Maintenance, "watch", fails)
    with pytest.raises(RuntimeError, match="a loop broke"):
        async with running(settings) as (_, loops):
            assert loops is not None
            await asyncio.wait_for(loops, 10.0)
    assert closed == [subjects.LINEAGE, subjects.DEAD] * 2
