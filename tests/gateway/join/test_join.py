"""Joining a real site: the token names the gateway, which admits the node for its work only."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from banyan.digest import blake
from banyan.errors import DeadlineMissed, InvalidInput, NotFound, Refused, TemporaryError
from banyan.v1 import events_pb2
from banyan.v1 import gateway_service_pb2 as gateway_pb
from banyan.v1 import learner_service_pb2 as learner
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import treestore_service_pb2 as lineage
from banyan.v1.gateway_service_pb2_grpc import GatewayServiceStub
from banyan.v1.learner_service_pb2_grpc import (
    LearnerServiceServicer,
    LearnerServiceStub,
    add_LearnerServiceServicer_to_server,
)
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc
from services.gateway.join import client, rpc_allowlist, slots, tls, tokens
from tests.gateway.live_site import channel, node_channel


async def _bus(env: dict[str, str]) -> Bus:
    return await Bus.connect(
        env["BANYAN_NATS"],
        "node",
        creds=env["BANYAN_NATS_CREDS"],
        inbox_prefix=env["BANYAN_NATS_INBOX"],
        tls_root=env["BANYAN_NATS_TLS_ROOT"],
        tls_name=env["BANYAN_NATS_TLS_NAME"],
        patience_s=5.0,
    )


async def test_an_admitted_node_takes_a_tree(here, tmp_path, eventually) -> None:
    env = await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "node", "n-1"
    )
    # The same name may be used in each run.
    assert env["BANYAN_RUN"] == here.run_id and here.run_id in env["BANYAN_NATS_INBOX"]
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o700
    assert len(Path(env["BANYAN_SECRET_FILE"]).read_text()) == 64  # of the node's own port
    await here.publish_policy(here.run_id, 0)

    async def opened() -> bool:
        return (await here.progress(here.run_id)).groups.opened == 4

    await eventually(opened)
    bus = await _bus(env)  # the admission made the consumer, which nodes may not make
    work = await bus.bind(subjects.GROWTH, env["BANYAN_GROWTH_CONSUMER"])
    (assignment,) = await work.fetch(1, 5.0)
    grow = assignment.decode(events_pb2.GrowTree)
    async with node_channel(env) as opened_channel:
        trees = TreeStoreServiceStub(opened_channel)
        request = lineage.ClaimTreeRequest(tree_id=grow.tree_id, node_id="n-1", ticket=grow.ticket)
        claim = await rpc.call(trees.ClaimTree, request)
        assert claim.epoch == 1 and claim.tree.spec.run_id == here.run_id
        await rpc.call(
            trees.ReturnTree,
            lineage.ReturnTreeRequest(tree_id=grow.tree_id, epoch=1, reason="drain"),
        )
        with pytest.raises(NotFound):  # the store's own error
            await rpc.call(trees.RenewClaim, lineage.RenewClaimRequest(tree_id=b"x" * 32, epoch=1))
    members = (
        await rpc.call(here.runs.ReadMembers, runs.ReadMembersRequest(run_id=here.run_id))
    ).members
    assert [(m.node_id, m.joined) for m in members] == [("n-1", True)]
    await bus.close()


async def test_the_proxy_passes_the_nodes_calls_on_and_nothing_else(here, tmp_path) -> None:
    env = await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "node"
    )
    async with node_channel(env) as opened:
        store, trees = RunStoreServiceStub(opened), TreeStoreServiceStub(opened)
        answer = await rpc.call(store.ReadRun, runs.ReadRunRequest(run_id=here.run_id))
        assert answer.run.run_id == here.run_id
        other = runs.Member(run_id="other-1", node_id="x")
        forbidden = [
            (store.ReadRun, runs.ReadRunRequest(run_id="other-1")),
            (store.ReadRun, runs.ReadRunRequest(run_id="")),
            (store.ReadPolicies, runs.ReadPoliciesRequest(run_id="other-1")),
            (store.PutMember, runs.PutMemberRequest(member=other)),
            (store.TakeGatewayEpoch, runs.TakeGatewayEpochRequest()),
            (store.MoveRun, runs.MoveRunRequest(run_id=here.run_id)),
            (store.PutPolicy, runs.PutPolicyRequest()),
            (store.PutToken, runs.PutTokenRequest()),
            (trees.CommitBatch, lineage.CommitBatchRequest(run_id=here.run_id)),
            (trees.ListTrees, lineage.ListTreesRequest()),
            (GatewayServiceStub(opened).CreateToken, gateway_pb.CreateTokenRequest()),
        ]
        for method, request in forbidden:
            with pytest.raises(Refused) as refused:
                await rpc.call(method, request)
            assert refused.value.reason == "PERMISSION_DENIED", method


async def test_a_node_may_not_touch_trees_of_another_run(
    here, tmp_path, recipe_of, eventually
) -> None:
    env = await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "node", "n-1"
    )
    other = (await here.create(recipe_of(task={"holdout": 0.0}))).run_id
    await here.publish_policy(other, 0)

    async def opened() -> bool:
        return (await here.progress(other)).groups.opened > 0

    await eventually(opened)
    listed = await rpc.call(
        here.trees.ListTrees, lineage.ListTreesRequest(filter=lineage.TreeFilter(run_id=other))
    )
    tree_id = listed.trees[0].tree_id
    claim = await rpc.call(
        here.trees.ClaimTree, lineage.ClaimTreeRequest(tree_id=tree_id, node_id="its-own", ticket=1)
    )
    assert claim.epoch == 1
    async with node_channel(env) as through:
        trees = TreeStoreServiceStub(through)
        for method, request in (
            (trees.ClaimTree, lineage.ClaimTreeRequest(tree_id=tree_id, node_id="n-1", ticket=1)),
            (trees.RenewClaim, lineage.RenewClaimRequest(tree_id=tree_id, epoch=1)),
            (trees.ReturnTree, lineage.ReturnTreeRequest(tree_id=tree_id, epoch=1, reason="drain")),
            (trees.AwaitIngested, lineage.AwaitIngestedRequest(tree_id=tree_id, epoch=1)),
        ):
            with pytest.raises(Refused, match=f"does not belong to run {here.run_id}") as refused:
                await rpc.call(method, request)
            assert refused.value.reason == "OTHER_RUN"
        ask = lineage.ClaimTreesRequest(
            claims=[lineage.ClaimTreeRequest(tree_id=tree_id, node_id="n-1", ticket=1)]
        )
        (outcome,) = (await rpc.call(trees.ClaimTrees, ask)).outcomes
        assert outcome.refused == "OTHER_RUN" and not outcome.HasField("claim")
        wait = lineage.AwaitTreesIngestedRequest(
            trees=[lineage.AwaitIngestedRequest(tree_id=tree_id, epoch=1)]
        )
        (told,) = (await rpc.call(trees.AwaitTreesIngested, wait)).outcomes
        assert told.refused == "OTHER_RUN" and not told.HasField("answer")
        ask.claims.add(tree_id=tree_id, node_id="its-own")
        with pytest.raises(Refused, match="may speak for itself only"):
            await rpc.call(trees.ClaimTrees, ask)
    # The claim is still its own.
    await rpc.call(here.trees.RenewClaim, lineage.RenewClaimRequest(tree_id=tree_id, epoch=1))


async def test_a_node_gives_large_segments_to_the_store(here, tmp_path, eventually) -> None:
    """PutBlob is the only stream up through the proxy; it takes trees of the token's run only."""
    env = await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "node", "n-1"
    )
    await here.publish_policy(here.run_id, 0)

    async def opened() -> bool:
        return (await here.progress(here.run_id)).groups.opened > 0

    await eventually(opened)
    listed = await rpc.call(
        here.trees.ListTrees,
        lineage.ListTreesRequest(filter=lineage.TreeFilter(run_id=here.run_id)),
    )
    tree_id, data = listed.trees[0].tree_id, b"x" * 3_000_000

    def pieces(epoch: int):
        yield lineage.PutBlobRequest(
            tree_id=tree_id, epoch=epoch, digest=blake(data), size=len(data)
        )
        for start in range(0, len(data), 1 << 20):
            yield lineage.PutBlobRequest(chunk=data[start : start + (1 << 20)])

    async with node_channel(env) as through:
        trees = TreeStoreServiceStub(through)
        claim = await rpc.call(
            trees.ClaimTree, lineage.ClaimTreeRequest(tree_id=tree_id, node_id="n-1", ticket=1)
        )

        def put(epoch: int, timeout: float, metadata: object):
            return trees.PutBlob(pieces(epoch), timeout=timeout, metadata=metadata)

        await rpc.call(put, claim.epoch)
        with pytest.raises(Refused) as refused:
            await rpc.call(put, claim.epoch + 1)
        assert refused.value.reason == "STALE_EPOCH"
    async with node_channel({**env, "BANYAN_STORE_TOKEN": "wrong"}) as stranger:
        trees = TreeStoreServiceStub(stranger)
        with pytest.raises(Refused):
            await rpc.call(put, claim.epoch)


async def test_a_node_keeps_its_key_and_its_name(here, tmp_path) -> None:
    env = await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "node", "n-1"
    )
    (admitted,) = (
        await rpc.call(here.runs.ReadMembers, runs.ReadMembersRequest(run_id=here.run_id))
    ).members
    assert admitted.public_key.startswith("U") and admitted.present
    mine = runs.Member(node_id="n-1", run_id=here.run_id, joined=True)
    async with node_channel(env) as through:
        put = RunStoreServiceStub(through).PutMember
        await rpc.call(put, runs.PutMemberRequest(member=mine))
        (there,) = (
            await rpc.call(
                here.gateway.ListMembers, gateway_pb.ListMembersRequest(run_id=here.run_id)
            )
        ).members
        assert there.public_key == admitted.public_key and there.present
        await rpc.call(put, runs.PutMemberRequest(member=mine, leaving=True))
    (gone,) = (
        await rpc.call(here.gateway.ListMembers, gateway_pb.ListMembersRequest(run_id=here.run_id))
    ).members
    assert not gone.present and gone.public_key == admitted.public_key
    with pytest.raises(Refused, match="'n-1' is another node"):
        await client.admit(
            here.running.join_address, await here.token(here.run_id), tmp_path / "thief", "n-1"
        )
    # Under its own name.
    await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "node", "n-1"
    )
    (back,) = (
        await rpc.call(here.gateway.ListMembers, gateway_pb.ListMembersRequest(run_id=here.run_id))
    ).members
    assert back.present


async def test_a_node_speaks_for_itself_only(here, tmp_path) -> None:
    """The token is common to all nodes; the gateway's answer to a node is its own."""
    env = await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "node", "n-1"
    )
    member = runs.Member(node_id="n-1", run_id=here.run_id, joined=True)
    async with node_channel(env) as through:
        put, claim = RunStoreServiceStub(through).PutMember, TreeStoreServiceStub(through).ClaimTree
        for changes in (
            {"node_id": "rollout-0"},
            {"node_id": "n" * 100_000},
            {"joined": False},
            {"public_key": "U1"},
        ):
            other = runs.Member()
            other.CopyFrom(member)
            for key, value in changes.items():
                setattr(other, key, value)
            with pytest.raises(Refused, match="itself") as refused:
                await rpc.call(put, runs.PutMemberRequest(member=other))
            assert refused.value.reason == "PERMISSION_DENIED" and len(str(refused.value)) < 300
        with pytest.raises(Refused, match="for itself only, not for 'rollout-0'"):
            await rpc.call(
                claim, lineage.ClaimTreeRequest(tree_id=b"x" * 32, node_id="rollout-0", ticket=1)
            )
        with pytest.raises(InvalidInput, match="at most 255"):
            far = runs.Member(node_id="n-1", run_id=here.run_id, joined=True, host="h" * 256)
            await rpc.call(put, runs.PutMemberRequest(member=far))
    token, name, code = env["BANYAN_STORE_TOKEN"].split(".")
    for shown in (
        token,
        f"{token}.n-2.{code}",
        f"{token}.{name}.{'0' * len(code)}",
        f"{token}.{name}",
    ):
        async with node_channel({**env, "BANYAN_STORE_TOKEN": shown}) as stranger:
            with pytest.raises(Refused, match="which node") as refused:
                await rpc.call(
                    RunStoreServiceStub(stranger).PutMember, runs.PutMemberRequest(member=member)
                )
            assert refused.value.reason == "UNAUTHENTICATED"
    members = (
        await rpc.call(here.runs.ReadMembers, runs.ReadMembersRequest(run_id=here.run_id))
    ).members
    assert [m.node_id for m in members] == ["n-1"]


@pytest.mark.parametrize("name", ["n" * 65, "a.b", "a b", "ä", "rollout-0", "rollout-17"])
async def test_a_name_that_cannot_be_is_refused(here, tmp_path, name) -> None:
    with pytest.raises(
        (InvalidInput, Refused), match=r"1 to 64 letters|give this one another name"
    ):
        await client.admit(
            here.running.join_address, await here.token(here.run_id), tmp_path / "node", name
        )
    assert not (
        await rpc.call(here.runs.ReadMembers, runs.ReadMembersRequest(run_id=here.run_id))
    ).members


async def test_bytes_that_are_no_request_are_the_callers_mistake(here, tmp_path) -> None:
    env = await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "node", "n-1"
    )
    garbage = b"\xff\xff\xff"

    async def pieces():
        yield garbage

    async with node_channel(env) as through:
        calls = [
            through.unary_unary(method)(garbage, timeout=10)
            for method in (*rpc_allowlist.STORE_METHODS, rpc_allowlist.JOIN_SWARM)
        ]
        calls.append(through.stream_unary(rpc_allowlist.PUT_BLOB)(pieces(), timeout=10))
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError, match="the request is no banyan") as failed:
                await call
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError, match="the request is no banyan") as failed:
            await anext(
                aiter(through.unary_stream(rpc_allowlist.FETCH_WEIGHTS)(garbage, timeout=10))
            )
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_join_port_does_not_describe_itself(here) -> None:
    async def asking():
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    async def silent():  # a caller that sends nothing cannot fail while it sends
        await asyncio.Event().wait()
        yield reflection_pb2.ServerReflectionRequest()

    async def services(opened, requests):
        stub = reflection_pb2_grpc.ServerReflectionStub(opened)
        return [
            s.name
            async for answer in stub.ServerReflectionInfo(requests, timeout=10)
            for s in _named(answer)
        ]

    async with channel(here.running.address) as plain:
        assert "banyan.v1.GatewayService" in await services(plain, asking())
    pem = tls.identity(here.state).pem
    async with channel(here.running.join_address, root_pem=pem, target_name=tls.NAME) as opened:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await services(opened, silent())
        assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


def _named(answer):
    return answer.list_services_response.service


async def test_an_address_without_a_gateway_says_so(tmp_path) -> None:
    for address in ("127.0.0.1:1", "nonsense"):
        with pytest.raises((DeadlineMissed, InvalidInput), match=r"127.0.0.1:1|nonsense"):
            await client.admit(address, str(tokens.make("ab" * 32)), tmp_path)


class _Weights(LearnerServiceServicer):
    async def FetchWeights(self, request, context):
        data = bytes(range(256)) * 16
        for offset in range(request.offset, len(data), 1024):
            yield learner.FetchWeightsResponse(
                offset=offset, data=data[offset : offset + 1024], total=len(data)
            )


async def test_weights_come_through_from_any_offset(here, tmp_path) -> None:
    server = await rpc.serve(
        "127.0.0.1:0", [lambda s: add_LearnerServiceServicer_to_server(_Weights(), s)], []
    )
    env = await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "node"
    )
    await here.publish_policy(here.run_id, 0, address=server.address)
    async with node_channel(env) as opened:
        request = learner.FetchWeightsRequest(digest=b"\1" * 32, offset=1000)
        pieces = [p async for p in LearnerServiceStub(opened).FetchWeights(request, timeout=10)]
    assert (
        pieces[0].offset == 1000
        and b"".join(p.data for p in pieces) == (bytes(range(256)) * 16)[1000:]
    )
    await server.stop(0)


async def _whole(call):
    return await call


async def test_a_node_that_uploads_without_an_end_has_two_places_and_others_have_theirs(
    here, tmp_path
) -> None:
    token, address = await here.token(here.run_id), here.running.join_address
    hostile = await client.admit(address, token, tmp_path / "hostile", "hostile")
    honest = await client.admit(address, token, tmp_path / "honest", "honest")
    ended = asyncio.Event()

    async def slowly():
        yield lineage.PutBlobRequest(tree_id=bytes(32), epoch=1, digest=blake(b"x"), size=1)
        await ended.wait()

    async with node_channel(hostile) as one, node_channel(honest) as other:
        stubs = TreeStoreServiceStub(one), TreeStoreServiceStub(other)
        uploads = [
            asyncio.ensure_future(_whole(stubs[0].PutBlob(slowly(), timeout=60)))
            for _ in range(slots.UPLOADS + 1)
        ]
        ended_first, others = await asyncio.wait(
            uploads, timeout=20, return_when=asyncio.FIRST_COMPLETED
        )
        assert len(ended_first) == 1 and len(others) == slots.UPLOADS
        refused = ended_first.pop().exception()
        assert (
            isinstance(refused, grpc.aio.AioRpcError)
            and refused.code() is grpc.StatusCode.UNAVAILABLE
        )
        assert "node hostile has 2 uploads under way" in (refused.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as empty:
            await stubs[1].PutBlob(iter([]), timeout=60)
        assert empty.value.code() is grpc.StatusCode.INVALID_ARGUMENT, (
            "it was looked at, and held nothing"
        )
        ended.set()
        await asyncio.gather(*others, return_exceptions=True)


def test_calls_are_counted_by_run_and_node() -> None:
    taken = slots.Slots(2, "calls")
    with taken.one("r", "a"), taken.one("r", "a"), taken.one("r", "b"):
        with pytest.raises(TemporaryError, match="node a has 2 calls"), taken.one("r", "a"):
            pass
        with taken.one("other", "a"):
            pass
    with taken.one("r", "a"):
        assert len(taken._taken) == 1, "nothing is remembered of those that ended"
