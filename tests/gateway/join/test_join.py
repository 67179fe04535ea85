"""Joining a real site: the token names the gateway, which admits the node for its work only."""

from pathlib import Path

import pytest

from banyan.errors import DeadlineMissed, InvalidInput, NotFound, Refused
from banyan.v1 import events_pb2
from banyan.v1 import gateway_service_pb2 as gateway_pb
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import treestore_service_pb2 as lineage
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc
from services.gateway.join import client, tokens
from tests.gateway.live_site import node_channel


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
            with pytest.raises(
                Refused, match=r"PutMember of a joined node must|for itself only"
            ) as refused:
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


async def test_an_address_without_a_gateway_says_so(tmp_path) -> None:
    for address in ("127.0.0.1:1", "nonsense"):
        with pytest.raises((DeadlineMissed, InvalidInput), match=r"127.0.0.1:1|nonsense"):
            await client.admit(address, str(tokens.make("ab" * 32)), tmp_path)
