"""Join tokens at the gateway's TLS port: valid ones, expired ones, and other metadata."""

from types import SimpleNamespace

import pytest

from banyan.errors import BanyanError, InvalidInput, Refused
from banyan.v1 import gateway_service_pb2 as gateway_pb
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import treestore_service_pb2 as lineage
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.rpc import rpc
from services.gateway.join import client, tls, tokens
from services.gateway.join.admission import TokenVerifier
from services.gateway.server import Gateway
from tests.gateway.live_site import channel


@pytest.mark.parametrize("bearer", ["", "0" * 32, "garbage"])
async def test_without_a_good_token_nothing_is_passed_on(here, bearer) -> None:
    pem = tls.identity(here.state).pem
    async with channel(
        here.running.join_address, root_pem=pem, token=bearer, target_name=tls.NAME
    ) as opened:
        for method, request in (
            (RunStoreServiceStub(opened).ReadRun, runs.ReadRunRequest(run_id=here.run_id)),
            (TreeStoreServiceStub(opened).ClaimTree, lineage.ClaimTreeRequest(tree_id=b"x" * 32)),
        ):
            with pytest.raises(Refused, match="join token") as refused:
                await rpc.call(method, request)
            assert refused.value.reason == "UNAUTHENTICATED"


async def test_a_wrong_token_is_refused_with_what_to_do(here, tmp_path) -> None:
    good = tokens.parse(await here.token(here.run_id))
    wrong = tokens.Token("0" * 32, good.fingerprint)
    with pytest.raises(Refused, match="wrong or has expired; ask for a new one"):
        await client.admit(here.running.join_address, str(wrong), tmp_path / "node")


async def test_a_token_expires(here, tmp_path, eventually) -> None:
    token = await here.token(here.run_id, valid_s=1)

    async def refused() -> bool:
        try:
            await TokenVerifier(_store_of(here), here.state).run_of(
                [("authorization", f"Bearer {token}")]
            )
            return False
        except Refused as error:
            return "expired" in str(error)

    await eventually(refused, 5.0)
    with pytest.raises(Refused, match="expired"):
        await client.admit(here.running.join_address, token, tmp_path / "node")


def _store_of(here):
    return here.running.drivers._store


async def test_another_gateways_token_is_not_even_shown_to_this_one(here, tmp_path) -> None:
    foreign = tokens.make("ab" * 32)
    with pytest.raises(Refused, match="another gateway's, or somebody is in between") as refused:
        await client.admit(here.running.join_address, str(foreign), tmp_path / "node")
    assert refused.value.reason == "WRONG_CERTIFICATE"
    assert not (tmp_path / "node" / "node.seed").exists()


@pytest.mark.parametrize("text", ["", "abc", "0" * 97, "0" * 32 + "." + "g" * 64])
async def test_what_is_no_token_is_refused_at_once(text, tmp_path) -> None:
    with pytest.raises(InvalidInput, match="join token is 32 hex digits") as refused:
        await client.admit("127.0.0.1:1", text, tmp_path)
    assert len(text) < 4 or text not in str(refused.value)


class _Peer:
    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer


@pytest.mark.parametrize("peer", ["ipv4:10.0.0.7:4000", "ipv6:[2001:db8::1]:4000"])
async def test_tokens_are_made_on_the_gateways_host_only(store, tmp_path, peer) -> None:
    servicer = Gateway(store, None, None, None, join=None, state=tmp_path)
    with pytest.raises(Refused, match="own host only"):
        await servicer.CreateToken(None, _Peer(peer))


def test_a_token_does_not_show_itself() -> None:
    token = tokens.make("ab" * 32)
    assert token.secret not in repr(token) and tokens.parse(f" {token}\n") == token


async def test_a_deterministic_run_cannot_be_joined(here, recipe_of) -> None:
    run = await here.create(recipe_of(deterministic=True, control={"max_staleness": 0}))
    with pytest.raises(Refused, match="one node samples all of it"):
        await here.token(run.run_id)


async def test_a_run_that_is_over_cannot_be_joined(here, tmp_path) -> None:
    token = await here.token(here.run_id)
    await rpc.call(here.gateway.CancelRun, gateway_pb.CancelRunRequest(run_id=here.run_id))
    with pytest.raises(BanyanError, match="over"):
        await client.admit(here.running.join_address, token, tmp_path / "node")


async def test_a_stranger_fills_no_memory(here) -> None:
    """A message is read before its sender is known, so messages of strangers must be small."""
    pem = tls.identity(here.state).pem
    async with channel(
        here.running.join_address, root_pem=pem, token="0" * 32, target_name=tls.NAME
    ) as opened:
        request = runs.ReadRunRequest(run_id="x" * (9 << 20))
        with pytest.raises(BanyanError, match="larger than max") as refused:
            await rpc.call(RunStoreServiceStub(opened).ReadRun, request, 10.0)
        assert refused.value.reason == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("spoken", "said"), [("0123456789abcdef", "'0123456789abcdef'"), ("", "an older version's")]
)
async def test_a_node_that_speaks_other_messages_is_refused(
    here, tmp_path, monkeypatch, spoken, said
) -> None:
    monkeypatch.setattr(client, "schema_version", SimpleNamespace(digest=lambda: spoken))
    with pytest.raises(
        Refused, match=f"node 'n-1' is {said}.*version of Banyan on the node"
    ) as refused:
        await client.admit(
            here.running.join_address, await here.token(here.run_id), tmp_path / "node", "n-1"
        )
    assert refused.value.reason == "OTHER_VERSION"
    assert not (
        await rpc.call(here.runs.ReadMembers, runs.ReadMembersRequest(run_id=here.run_id))
    ).members
