"""Which messages this program speaks. Who shares a log speaks the same ones: a field that one side does not know is lost."""

import functools

from banyan.digest import blake
from banyan.v1 import (
    events_pb2,
    gateway_service_pb2,
    learner_service_pb2,
    runstore_service_pb2,
    tree_pb2,
    treestore_service_pb2,
)

_FILES = (
    events_pb2,
    tree_pb2,
    gateway_service_pb2,
    learner_service_pb2,
    runstore_service_pb2,
    treestore_service_pb2,
)


@functools.cache
def digest() -> str:
    """Hex digest of the messages and calls of events, trees and the services that a node talks to; comments do not count."""
    return blake(*(file.DESCRIPTOR.serialized_pb for file in _FILES)).hex()[:16]
