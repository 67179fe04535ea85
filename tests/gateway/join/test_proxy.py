"""The proxy of the join port: it passes the calls of a joined node on, and refuses all others."""

import asyncio

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from banyan.digest import blake
from banyan.errors import Refused, TemporaryError
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
from services.chassis.rpc import rpc
from services.gateway.join import client, rpc_allowlist, slots, tls
from tests.gateway.live_site import channel, node_channel


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
        (outcome,) = (await rpc.call(trees.AwaitTreesIngested, wait)).outcomes
        assert outcome.refused == "OTHER_RUN" and not outcome.HasField("answer")
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
        await ended.wait()  # before the first message: one that is being sent may hide the refusal
        yield lineage.PutBlobRequest(tree_id=bytes(32), epoch=1, digest=blake(b"x"), size=1)

    async with node_channel(hostile) as first, node_channel(honest) as second:
        stubs = TreeStoreServiceStub(first), TreeStoreServiceStub(second)
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
        assert empty.value.code() is grpc.StatusCode.INVALID_ARGUMENT, "it was read, and was empty"
        ended.set()
        await asyncio.gather(*others, return_exceptions=True)


def test_calls_are_counted_by_run_and_node() -> None:
    calls = slots.Slots(2, "calls")
    with calls.slot("r", "a"), calls.slot("r", "a"), calls.slot("r", "b"):
        with pytest.raises(TemporaryError, match="node a has 2 calls"), calls.slot("r", "a"):
            pass
        with calls.slot("other", "a"):
            pass
    with calls.slot("r", "a"):
        assert len(calls._used) == 1, "nothing is remembered of those that ended"


async def test_a_node_is_not_told_the_cause_of_an_end(here, tmp_path) -> None:
    env = await client.admit(
        here.running.join_address, await here.token(here.run_id), tmp_path / "node"
    )
    request = gateway_pb.CancelRunRequest(run_id=here.run_id, cause="a row said 42")
    await rpc.call(here.gateway.CancelRun, request)
    async with node_channel(env) as opened:
        answer = await rpc.call(
            RunStoreServiceStub(opened).ReadRun, runs.ReadRunRequest(run_id=here.run_id)
        )
    assert answer.run.run_id == here.run_id and not answer.run.cause
