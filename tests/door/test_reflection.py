"""A port that describes itself: calls that are made from its reflection alone.

That is what grpcurl does: it asks for descriptors, builds the request from JSON, and prints the
response as JSON. grpcurl itself, a program of Go, is not among this project's packages.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from banyan.client.offline import OfflineStore
from banyan.runtime import secret
from tests.door.test_store import RUN


@pytest.fixture(scope="module")
def channel(state: Path) -> Iterator[grpc.Channel]:
    store = OfflineStore(state)
    with grpc.insecure_channel(store.endpoints.store) as inner:
        yield secret.channel(inner, store.endpoints.secret)
    store.close()


def described(channel: grpc.Channel) -> tuple[ProtoReflectionDescriptorDatabase, DescriptorPool]:
    with_secret: Any = _Streaming(channel)
    database = ProtoReflectionDescriptorDatabase(with_secret)
    return database, DescriptorPool(database)


class _Streaming:
    """A channel whose streams of requests carry the secret, as `grpcurl -H` sends it."""

    def __init__(self, channel: Any) -> None:
        self._inner, self._secret = channel._channel, channel._interceptor._secret

    def stream_stream(self, *names: Any, **more: Any) -> Any:
        call = self._inner.stream_stream(*names, **more)
        return lambda requests, **kept: call(
            requests, **{**kept, "metadata": ((secret.KEY, self._secret),), "timeout": 30}
        )


def called(channel: grpc.Channel, service: str, method: str, request: dict[str, Any]) -> Any:
    """Return the JSON of a call, made by what the port says about itself."""
    pool = described(channel)[1]
    found = pool.FindServiceByName(service).FindMethodByName(method)
    make, read = map(message_factory.GetMessageClass, (found.input_type, found.output_type))
    send = channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=read.FromString,
    )
    return json_format.MessageToDict(send(json_format.ParseDict(request, make()), timeout=30))


def test_a_port_lists_its_services(channel: grpc.Channel) -> None:
    services = set(described(channel)[0].get_services())
    assert {"banyan.v1.TreeStoreService", "banyan.v1.RunStoreService"} <= services
    assert {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= services


def test_calls_are_made_from_descriptors_alone(channel: grpc.Channel) -> None:
    runs = called(channel, "banyan.v1.RunStoreService", "ReadRuns", {})
    assert [run["runId"] for run in runs["runs"]] == [RUN]
    wanted = {"filter": {"purpose": "TREE_PURPOSE_TRAIN", "limit": 3}}
    trees = called(channel, "banyan.v1.TreeStoreService", "ListTrees", wanted)["trees"]
    assert len(trees) == 3 and trees[0]["state"] == "TREE_STATE_CONSUMED"


def test_without_the_secret_nothing_is_described(channel: Any) -> None:
    database = ProtoReflectionDescriptorDatabase(channel._channel)
    with pytest.raises(grpc.RpcError) as refused:
        database.get_services()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
