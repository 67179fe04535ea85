"""The whole service in this process: a real nats-server, gRPC, SQLite. What goes in on the log comes out of the store."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from banyan.errors import InvalidInput, NotReady, Refused
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis import rpc, subjects
from services.chassis.bus import Bus
from services.treestore import claiming
from services.treestore.ingest import Item
from services.treestore.service import running
from services.treestore.settings import Settings
from tests.treestore.forge import Forge


@dataclass
class Store:
    """A client of the store and of the log, with a run in it."""

    bus: Bus
    trees: TreeStoreServiceStub
    runs: RunStoreServiceStub
    forge: Forge

    async def say(self, *items: Item, again: str = "") -> int:
        sequence = 0
        for item in items:
            sequence = await self.bus.publish_bytes(item.subject, item.data, f"{again}{item.sequence}")
        return sequence

    async def begin(self) -> None:
        epoch = (await rpc.call(self.runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest(gateway_id="g"))).epoch
        put = rs.PutRunRequest(run=self.forge.run(), request_id="first", gateway_epoch=epoch)
        await rpc.call(self.runs.PutRun, put)
        take = rs.TakeLearnerEpochRequest(run_id=self.forge.run_id, learner_id="l")
        assert (await rpc.call(self.runs.TakeLearnerEpoch, take)).epoch == 1

    async def grow(self, spec: tree_pb2.TreeSpec) -> None:
        """A tree's whole life, as gateway, rollout and verifier would have it."""
        await self.say(self.forge.opened(spec))
        epoch = await self.claim(spec.tree_id)
        items = self.forge.life(spec, epoch=epoch)
        await self.say(*items)
        ids = [s.segment.id for i in items if i.subject.endswith("segment") for s in _grown(i).segments]
        wait = ts.AwaitIngestedRequest(tree_id=spec.tree_id, epoch=epoch, segment_ids=ids, grown=True, deadline_ms=10_000)
        answer = await rpc.call(self.trees.AwaitIngested, wait, deadline_s=15)
        assert answer.grown and not answer.missing

    async def claim(self, tree_id: bytes) -> int:
        """Claims a tree as soon as the store has it."""
        for _ in range(500):
            try:
                request = ts.ClaimTreeRequest(tree_id=tree_id, node_id="node-1")
                return (await rpc.call(self.trees.ClaimTree, request)).epoch
            except LookupError:
                await asyncio.sleep(0.01)
        raise AssertionError("the tree was never stored")


def _grown(item: Item) -> events_pb2.SegmentsGrown:
    return events_pb2.SegmentsGrown.FromString(item.data)


@pytest_asyncio.fixture
async def store(nats_server, tmp_path: Path) -> AsyncIterator[Store]:
    settings = Settings(nats=nats_server.url, listen="127.0.0.1:0", state=tmp_path / "state", tick_ms=50)
    async with running(settings) as (server, _loops):
        bus = await Bus.connect(nats_server.url, "test")
        channel = rpc.channel(server.address)
        client = Store(bus, TreeStoreServiceStub(channel), RunStoreServiceStub(channel), Forge())
        await client.begin()
        yield client
        await channel.close()
        await bus.close()


async def test_from_opening_to_batch_over_the_wire(store: Store, eventually) -> None:
    forge = store.forge
    for ordinal in range(2):
        await store.grow(forge.spec(ordinal))
    closed = [d async for d in _first(store.bus, subjects.LINEAGE, [subjects.lineage(forge.run_id, "closed")], 1)]
    assert closed[0].decode(events_pb2.TreeClosed).group_closed
    ask = ts.ReadyGroupsRequest(run_id=forge.run_id, use="train")

    async def both() -> bool:
        return len((await rpc.call(store.trees.ReadyGroups, ask)).groups) == 2

    await eventually(both)
    ready = await rpc.call(store.trees.ReadyGroups, ask)
    assert [g.ordinal for g in ready.groups] == [0, 1] and not ready.HasField("oldest_open")
    commit = ts.CommitBatchRequest(
        run_id=forge.run_id, ordinal=0, learner_epoch=1, use="train", group_ids=[g.group_id for g in ready.groups]
    )
    await rpc.call(store.trees.CommitBatch, commit)
    batch = [d async for d in _first(store.bus, subjects.TRAIN, [subjects.train(forge.run_id, "batch")], 1)]
    assert batch[0].decode(events_pb2.BatchReady).group_ids == commit.group_ids
    trees = [t.tree async for t in store.trees.StreamTrees(ts.StreamTreesRequest(filter=ts.TreeFilter(run_id=forge.run_id)))]
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
    await store.say(store.forge.opened(spec))
    consumer = await store.bus.consumer(subjects.GROWTH, "nodes", [subjects.growth(store.forge.run_id)])
    delivery = (await consumer.fetch(1, 10.0))[0]
    grow = delivery.decode(events_pb2.GrowTree)
    assert grow == events_pb2.GrowTree(run_id=spec.run_id, tree_id=spec.tree_id, min_step=2, wave="w", wave_size=4, ticket=1)


async def test_claims_that_come_together_have_each_their_own_outcome(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [store.forge.spec(ordinal) for ordinal in range(3)]
    for spec in specs:
        await store.say(store.forge.opened(spec))
        assert await store.claim(spec.tree_id) == 1
        await store.say(store.forge.segments(store.forge.root(spec)))
        wait = ts.AwaitIngestedRequest(
            tree_id=spec.tree_id, epoch=1, segment_ids=[store.forge.root(spec).id], deadline_ms=9_000
        )
        assert not (await rpc.call(store.trees.AwaitIngested, wait)).missing
    ids = [specs[0].tree_id, b"x" * 32, specs[1].tree_id, specs[0].tree_id]
    ask = ts.ClaimTreesRequest(claims=[ts.ClaimTreeRequest(tree_id=i, node_id="n") for i in ids])
    outcomes = (await rpc.call(store.trees.ClaimTrees, ask)).outcomes
    assert [(o.refused, o.claim.epoch, o.claim.tree.spec.tree_id) for o in outcomes] == [
        ("", 2, ids[0]), ("NOT_FOUND", 0, b""), ("", 2, ids[2]), ("", 3, ids[0])
    ]  # fmt: skip
    assert all(len(o.claim.tree.segments) == 1 for o in outcomes if not o.refused)
    monkeypatch.setattr(claiming, "MOST_TOKENS", len(store.forge.root(specs[0])))
    ask = ts.ClaimTreesRequest(claims=[ts.ClaimTreeRequest(tree_id=s.tree_id, node_id="n") for s in specs])
    outcomes = (await rpc.call(store.trees.ClaimTrees, ask)).outcomes
    assert [o.refused for o in outcomes] == ["", "LATER", "LATER"]
    ask = ts.ClaimTreesRequest(claims=[ts.ClaimTreeRequest(tree_id=ids[0], node_id="n")] * 65)
    with pytest.raises(InvalidInput, match="at most 64"):
        await rpc.call(store.trees.ClaimTrees, ask)


async def test_await_ingested_names_what_is_missing_and_returns_as_soon_as_it_is_there(store: Store) -> None:
    forge, spec = store.forge, store.forge.spec()
    await store.say(forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    ask = ts.AwaitIngestedRequest(tree_id=spec.tree_id, epoch=epoch, segment_ids=[root.id], deadline_ms=50)
    assert list((await rpc.call(store.trees.AwaitIngested, ask)).missing) == [root.id]
    ask.deadline_ms = 20_000
    waiting = asyncio.ensure_future(rpc.call(store.trees.AwaitIngested, ask, deadline_s=25))
    await store.say(forge.segments(root, epoch=epoch))
    answer = await asyncio.wait_for(waiting, 5)
    assert not answer.missing and not answer.grown
    await rpc.call(store.trees.ClaimTree, ts.ClaimTreeRequest(tree_id=spec.tree_id, node_id="other"))
    with pytest.raises(Refused) as refused:
        await rpc.call(store.trees.AwaitIngested, ask)
    assert refused.value.reason == "STALE_EPOCH"


async def test_await_ingested_names_the_winner_of_a_place(store: Store) -> None:
    forge, spec = store.forge, store.forge.spec()
    await store.say(forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    winner, loser = forge.child(root, 0), forge.child(root, 0, length=7)
    await store.say(forge.segments(root, winner, loser, epoch=epoch))
    ask = ts.AwaitIngestedRequest(tree_id=spec.tree_id, epoch=epoch, segment_ids=[winner.id, loser.id], deadline_ms=9000)
    answer = await rpc.call(store.trees.AwaitIngested, ask, deadline_s=10)
    assert not answer.missing
    assert [(r.segment, r.reason, r.winner) for r in answer.refused] == [(loser.id, "ORDINAL_TAKEN", winner.id)]


async def test_leaves_are_read_once_they_are_stored(store: Store) -> None:
    forge, spec = store.forge, store.forge.spec(traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    await store.say(forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    middle = forge.child(root, 0, finish=1)
    leaf = forge.child(middle, 1)
    key = ts.LeafKey(tree_id=spec.tree_id, leaf=tree_pb2.LeafRef(segment=leaf.id, end=len(leaf)))
    ask = ts.ReadLeavesRequest(leaves=[key], deadline_ms=20_000)
    waiting = asyncio.ensure_future(rpc.call(store.trees.ReadLeaves, ask, deadline_s=25))
    await store.say(forge.leaf(leaf, epoch=epoch), forge.segments(leaf, middle, root, epoch=epoch))
    found = (await asyncio.wait_for(waiting, 5)).transcripts
    assert len(found) == 1 and found[0].key == key
    assert found[0].completion == "<0><1>" and found[0].completion_tokens == 8
    assert found[0].row_json == spec.row_json and list(found[0].scorers) == ["number"]
    assert found[0].finish == tree_pb2.SEGMENT_FINISH_STOP and found[0].traceparent == spec.traceparent
    await store.say(forge.score(leaf))
    ask.deadline_ms = 0
    for _ in range(500):
        found = (await rpc.call(store.trees.ReadLeaves, ask)).transcripts
        if not found[0].scorers:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the scorer still owes a score")


async def test_a_path_that_leaves_a_segment_early_needs_its_text(store: Store) -> None:
    forge, spec = store.forge, store.forge.spec()
    await store.say(forge.opened(spec))
    epoch = await store.claim(spec.tree_id)
    root = forge.root(spec)
    trunk = forge.child(root, 0)
    inside = forge.child(trunk, 0, fork=2)
    await store.say(forge.segments(root, trunk, inside, epoch=epoch), forge.leaf(trunk, epoch=epoch))
    await store.say(forge.leaf(inside, epoch=epoch, completion="exact text"))
    keys = [ts.LeafKey(tree_id=spec.tree_id, leaf=tree_pb2.LeafRef(segment=s.id, end=len(s))) for s in (trunk, inside)]
    found = await rpc.call(store.trees.ReadLeaves, ts.ReadLeavesRequest(leaves=keys, deadline_ms=9000), deadline_s=10)
    assert [t.completion for t in found.transcripts] == ["<0>", "exact text"]
    assert [t.completion_tokens for t in found.transcripts] == [4, 6]


async def test_a_refused_leaf_has_no_scorer_to_ask(store: Store) -> None:
    forge, spec = store.forge, store.forge.spec()
    await store.say(forge.opened(spec))
    old = await store.claim(spec.tree_id)
    await store.claim(spec.tree_id)
    root = forge.root(spec)
    await store.say(forge.leaf(root, epoch=old))
    key = ts.LeafKey(tree_id=spec.tree_id, leaf=tree_pb2.LeafRef(segment=root.id, end=len(root)), claim_epoch=old)
    ask = ts.ReadLeavesRequest(leaves=[key], deadline_ms=9000)
    found = await rpc.call(store.trees.ReadLeaves, ask, deadline_s=10)
    assert len(found.transcripts) == 1 and not found.transcripts[0].scorers


async def test_a_leaf_refused_under_an_old_claim_is_still_awaited_under_the_new_one(store: Store) -> None:
    forge, spec = store.forge, store.forge.spec()
    await store.say(forge.opened(spec))
    old, new = await store.claim(spec.tree_id), await store.claim(spec.tree_id)
    root = forge.root(spec)
    await store.say(forge.segments(root, epoch=new), forge.leaf(root, epoch=old))
    key = ts.LeafKey(tree_id=spec.tree_id, leaf=tree_pb2.LeafRef(segment=root.id, end=len(root)), claim_epoch=new)
    ask = ts.ReadLeavesRequest(leaves=[key], deadline_ms=9000)
    waiting = asyncio.ensure_future(rpc.call(store.trees.ReadLeaves, ask, deadline_s=10))
    await store.say(forge.leaf(root, epoch=new))
    assert list((await waiting).transcripts[0].scorers) == list(spec.scorers)


async def test_desired_processes_are_watched_without_polling(store: Store) -> None:
    first = await rpc.call(store.runs.WatchDesired, rs.WatchDesiredRequest(revision=0, deadline_ms=5000))
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
    await store.say(bad)

    async def listed() -> bool:
        return len((await rpc.call(store.runs.ReadDead, rs.ReadDeadRequest())).letters) == 1

    await eventually(listed)
    letter = (await rpc.call(store.runs.ReadDead, rs.ReadDeadRequest())).letters[0]
    assert letter.letter.payload == bad.data and letter.letter.subject == bad.subject and not letter.replayed
    await rpc.call(store.runs.ReplayDead, rs.ReplayDeadRequest(id=letter.id))

    async def replayed() -> bool:  # it comes back as a new message, and is as bad as before
        letters = (await rpc.call(store.runs.ReadDead, rs.ReadDeadRequest())).letters
        return len(letters) == 2 and letters[1].replayed

    await eventually(replayed)
    await store.grow(spec)  # and nothing stood in the way


async def test_letters_of_other_services_and_advisories_become_rows(store: Store, eventually) -> None:
    letter = events_pb2.DeadLetter(
        stream="LINEAGE", subject="lineage.x.leaf", sequence=7, payload=b"p", reason="why", service="verifier"
    )
    await store.bus.publish(subjects.dead("LINEAGE"), letter, "letter-7")

    async def listed() -> bool:
        letters = (await rpc.call(store.runs.ReadDead, rs.ReadDeadRequest())).letters
        return [x.letter for x in letters] == [letter]

    await eventually(listed)


async def test_errors_keep_their_reason_over_the_wire(store: Store) -> None:
    with pytest.raises(NotReady):
        await rpc.call(store.trees.SampleReplay, ts.SampleReplayRequest(run_id=store.forge.run_id))
    with pytest.raises(InvalidInput, match="too short"):
        await rpc.call(store.trees.GetTree, ts.GetTreeRequest(tree_id=b"ab"))
    with pytest.raises(LookupError, match="no run"):
        await rpc.call(store.runs.ReadRun, rs.ReadRunRequest(run_id="nobody"))


async def test_a_reader_serves_beside_the_writer_and_refuses_to_write(store: Store, nats_server, tmp_path: Path) -> None:
    await store.grow(store.forge.spec())
    settings = Settings(listen="127.0.0.1:0", state=tmp_path / "state", read_only=True, nats="nats://127.0.0.1:1")
    async with running(settings) as (server, loops):
        assert loops is None
        async with grpc.aio.insecure_channel(server.address) as channel:
            found = await rpc.call(TreeStoreServiceStub(channel).ListTrees, ts.ListTreesRequest())
            assert len(found.trees) == 1
            with pytest.raises(Refused) as refused:
                await rpc.call(RunStoreServiceStub(channel).TakeGatewayEpoch, rs.TakeGatewayEpochRequest())
            assert refused.value.reason == "READ_ONLY"
