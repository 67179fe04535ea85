"""Scoped NATS credentials against a real nats-server: everything that is not granted is refused."""

import asyncio
import contextlib
import json
from collections.abc import Iterator

import nats
import nats.errors
import pytest
from nats.js.errors import Error as JetStreamError

from banyan.errors import DeadlineMissed, InvalidInput
from banyan.runtime import ports
from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.process import nats_server
from services.gateway.join import jwt, nats_accounts, tls
from services.gateway.join.nats_permissions import Scope

RUN = "tiny-0001"
SCOPE = Scope(RUN, subjects.growth_durable(RUN), "_INBOX_node-1")


class Secured:
    def __init__(self, state) -> None:
        self.state, self.identity = state, tls.identity(state)
        self.address = f"127.0.0.1:{ports.free_port()}"
        config = nats_accounts.write_nats_config(
            state, self.address, state / "jetstream", self.identity
        )
        self.process = nats_server.start(config, state / "nats.log")
        nats_server.await_listening(self.address, self.process, state / "nats.log", tls=True)
        self.services = str(nats_accounts.service_credentials(state))

    async def service(self) -> Bus:
        bus = await self.connect("service", self.services)
        await bus.ensure_streams()
        return bus

    def node_creds(self, scope: Scope = SCOPE) -> str:
        seed = jwt.new_seed(jwt.USER)
        token = nats_accounts.admit(self.state, scope, "node-1", jwt.public_key(seed))
        path = self.state / "node.creds"
        path.write_text(jwt.credentials_file(token, seed))
        return str(path)

    async def insider(self) -> Bus:
        """Connect with all rights in the nodes' account, which no node has."""
        seed = jwt.new_seed(jwt.USER)
        claims = {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        path = self.state / "insider.creds"
        token = jwt.sign(
            nats_accounts.keys(self.state).nodes, jwt.public_key(seed), "insider", claims
        )
        path.write_text(jwt.credentials_file(token, seed))
        return await self.connect("insider", str(path))

    async def connect(self, name: str, creds: str, patience_s: float = 30.0) -> Bus:
        return await Bus.connect(
            f"nats://{self.address}",
            name,
            creds=creds,
            tls_root=str(self.identity.certificate),
            tls_name=tls.NAME,
            patience_s=patience_s,
        )

    async def node(self, patience_s: float = 5.0, address: str = "") -> Bus:
        return await Bus.connect(
            f"tls://{address or self.address}",
            "node",
            creds=self.node_creds(),
            inbox_prefix=SCOPE.inbox_prefix,
            tls_root=str(self.identity.certificate),
            tls_name=tls.NAME,
            patience_s=patience_s,
        )


@pytest.fixture
def secured(tmp_path) -> Iterator[Secured]:
    server = Secured(tmp_path)
    yield server
    server.process.terminate()
    server.process.wait(5)


async def test_nobody_connects_without_credentials(secured) -> None:
    with pytest.raises(DeadlineMissed, match="uthorization"):
        await secured.connect("a stranger", "", patience_s=2.0)


async def test_nobody_is_greeted_plainly(secured) -> None:
    with pytest.raises((nats.errors.Error, TimeoutError, OSError)):
        await nats.connect(
            f"nats://{secured.address}",
            user_credentials=secured.services,
            allow_reconnect=False,
            connect_timeout=2,
        )


async def test_a_node_does_all_that_its_work_needs(secured) -> None:
    service, node = await secured.service(), await secured.node()
    await service.consumer(
        subjects.GROWTH, SCOPE.growth_consumer, [subjects.growth(RUN)], ack_wait_s=1.0
    )
    await service.publish(
        subjects.growth(RUN), events_pb2.GrowTree(run_id=RUN, tree_id=b"t"), "grow"
    )
    work = await node.bind(subjects.GROWTH, SCOPE.growth_consumer)
    (assignment,) = await work.fetch(1, 3.0)
    await assignment.in_progress()
    for kind in ("segment", "leaf", "grown"):
        assert await node.publish(
            subjects.lineage(RUN, kind), events_pb2.SegmentsGrown(run_id=RUN), kind, deadline_s=3.0
        )
    await assignment.ack()
    assert await work.fetch(1, 1.5) == []  # acked for good: it does not come again after ack_wait
    heard = node.subscribe(subjects.train(RUN, "policy"))
    async with asyncio.timeout(5):
        await anext(heard)  # it receives from here on
        await service.publish(
            subjects.train(RUN, "policy"), events_pb2.PolicyPublished(bytes=7), "p"
        )
        await anext(heard)
    await heard.aclose()
    await node.close()
    await service.close()


@pytest.mark.parametrize(
    "subject",
    [
        subjects.lineage(RUN, "score"),
        subjects.lineage(RUN, "opened"),
        subjects.lineage(RUN, "closed"),
        subjects.lineage("other-1", "segment"),
        subjects.growth(RUN),
        subjects.train(RUN, "policy"),
        subjects.dead("LINEAGE"),
    ],
)
async def test_a_node_publishes_nothing_else(secured, subject) -> None:
    await (await secured.service()).close()
    node = await secured.node()
    with pytest.raises((nats.errors.Error, JetStreamError, asyncio.TimeoutError)):
        await node._js.publish(subject, b"x", timeout=0.3)
    await node.close()
    service = await secured.service()
    stream = subjects.GROWTH if subject.startswith("growth") else subjects.LINEAGE
    info = await service._js.stream_info(stream)
    assert info.state.messages == 0
    await service.close()


@pytest.mark.parametrize(
    "request_subject",
    [
        "$JS.API.STREAM.DELETE.LINEAGE",
        "$JS.API.STREAM.PURGE.LINEAGE",
        "$JS.API.STREAM.MSG.GET.LINEAGE",
        "$JS.API.CONSUMER.MSG.NEXT.GROWTH.grow-other-1",
        "$JS.API.CONSUMER.DELETE.GROWTH.grow-tiny-0001",
        f"$JS.API.CONSUMER.CREATE.LINEAGE.x.lineage.{RUN}.score",
        "$JS.API.CONSUMER.CREATE.TRAIN.x.train.other-1.policy",
        "$JS.API.CONSUMER.CREATE.TRAIN",
    ],
)
async def test_a_node_asks_nothing_else_of_the_broker(secured, request_subject) -> None:
    await (await secured.service()).close()
    node = await secured.node()
    with pytest.raises((nats.errors.Error, JetStreamError, asyncio.TimeoutError)):
        await node._client.request(request_subject, b"{}", timeout=0.4)
    await node.close()


async def test_a_node_makes_no_consumer_and_removes_none(secured) -> None:
    service, node = await secured.service(), await secured.node()
    await service.consumer(subjects.GROWTH, SCOPE.growth_consumer, [subjects.growth(RUN)])
    policy, growth = subjects.train(RUN, "policy"), subjects.growth(RUN)
    wanted = {"name": "x", "filter_subject": policy, "deliver_subject": f"{SCOPE.inbox_prefix}.y"}
    body = json.dumps({"stream_name": "TRAIN", "action": "create", "config": wanted}).encode()
    for request in (
        f"$JS.API.CONSUMER.CREATE.TRAIN.x.{policy}",
        "$JS.API.CONSUMER.CREATE.TRAIN",
        "$JS.API.CONSUMER.DURABLE.CREATE.TRAIN.x",
        f"$JS.API.CONSUMER.CREATE.GROWTH.x.{growth}",
        f"$JS.API.CONSUMER.CREATE.GROWTH.{SCOPE.growth_consumer}.{growth}",
        f"$JS.API.CONSUMER.DELETE.GROWTH.{SCOPE.growth_consumer}",
        f"$JS.API.CONSUMER.PAUSE.GROWTH.{SCOPE.growth_consumer}",
    ):
        with pytest.raises((nats.errors.Error, JetStreamError, asyncio.TimeoutError)):
            await node._client.request(request, body, timeout=0.3)
    assert await service.ack_floors(subjects.TRAIN) == {}
    assert list(await service.ack_floors(subjects.GROWTH)) == [SCOPE.growth_consumer]
    await node.close()
    await service.close()


async def test_who_asks_a_node_opens_no_other_subject_to_it(secured) -> None:
    """`resp` permissions are off: a reply subject does not let the node publish there."""
    service, node = await secured.insider(), await secured.node()
    heard: list[str] = []

    async def answer(message) -> None:
        heard.append(message.reply)
        await message.respond(b"!")

    own = f"{SCOPE.inbox_prefix}.x"
    await node._client.subscribe(own, cb=answer)
    await node._client.flush()
    async with asyncio.timeout(60.0):
        while not heard:  # a connection lost under load loses messages
            with pytest.raises((nats.errors.TimeoutError, nats.errors.NoRespondersError)):
                await service._client.request(own, b"?", timeout=1.0)
    refused = f'permissions violation for publish to "{heard[-1]}"'.lower()
    async with asyncio.timeout(30.0):
        while refused not in str(node._client.last_error).lower():
            await node._client.flush()
    await node.close()
    await service.close()


async def test_a_listener_looks_again_when_its_connection_was_gone(nats_server) -> None:
    bus = await Bus.connect(nats_server.url, "node")
    heard = bus.subscribe("train.r.policy")
    async with asyncio.timeout(30):
        await anext(heard)
        news = asyncio.ensure_future(anext(heard))
        nats_server.kill9()
        nats_server.restart()
        await news  # messages lost meanwhile are looked up in the store
    await heard.aclose()
    await bus.close()


async def test_a_node_hears_nobody_elses_inbox(secured) -> None:
    service, insider, node = await secured.service(), await secured.insider(), await secured.node()
    heard: list[bytes] = []

    async def note(message) -> None:
        heard.append(message.data)

    for subject in (
        "_INBOX.>",
        "lineage.>",
        ">",
        "_INBOX_node-2.>",
        "train.*.policy",
        "train.other-1.policy",
    ):
        await node._client.subscribe(subject, cb=note)
    own = await node._client.subscribe("_INBOX_node-1.x")
    await node._client.flush()
    got: list[bytes] = []
    async with asyncio.timeout(60.0):
        while not got:  # a connection lost under load loses messages
            for subject in (
                "_INBOX.a",
                "train.other-1.policy",
                f"lineage.{RUN}.score",
                "_INBOX_node-2.x",
                "_INBOX_node-1.x",
            ):
                for sender in (service, insider):
                    await sender._client.publish(subject, subject.encode())
            for sender in (service, insider):
                await sender._client.flush()
            with contextlib.suppress(nats.errors.TimeoutError):
                got.append((await own.next_msg(5)).data)
    assert got == [b"_INBOX_node-1.x"]
    assert heard == []
    for bus in (node, insider, service):
        await bus.close()


async def test_credentials_of_another_state_folder_are_refused(secured, tmp_path_factory) -> None:
    other = tmp_path_factory.mktemp("other")
    nats_accounts.write_nats_config(other, "127.0.0.1:1", other / "js")
    creds = str(nats_accounts.service_credentials(other))
    with pytest.raises(DeadlineMissed, match="uthorization"):
        await secured.connect("of elsewhere", creds, patience_s=2.0)


async def test_a_node_insists_on_the_gateways_certificate(secured, tmp_path_factory) -> None:
    secured.identity = tls.identity(tmp_path_factory.mktemp("other"))
    with pytest.raises(DeadlineMissed, match="CERTIFICATE_VERIFY_FAILED"):
        await secured.node(patience_s=1.0)


def test_keys_are_made_once_and_kept_from_others(tmp_path) -> None:
    assert nats_accounts.keys(tmp_path) == nats_accounts.keys(tmp_path)
    first = nats_accounts.service_credentials(tmp_path).read_text()
    nats_accounts.write_nats_config(tmp_path, "127.0.0.1:1", tmp_path / "js")
    assert nats_accounts.service_credentials(tmp_path).read_text() == first
    for path in [*(tmp_path / "nats" / "keys").iterdir(), tmp_path / "nats" / "services.creds"]:
        assert path.stat().st_mode & 0o077 == 0


def test_a_public_key_that_is_none_is_refused(tmp_path) -> None:
    nats_accounts.keys(tmp_path)
    with pytest.raises(InvalidInput, match="not a NATS user key"):
        nats_accounts.admit(tmp_path, SCOPE, "n", "Uxyz")


def test_without_accounts_nobody_joins(tmp_path) -> None:
    with pytest.raises(InvalidInput, match="without accounts"):
        nats_accounts.admit(tmp_path, SCOPE, "n", jwt.public_key(jwt.new_seed(jwt.USER)))
