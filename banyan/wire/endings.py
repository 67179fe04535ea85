"""Conversion between endings and their messages."""

from banyan.environments.endings import Ending
from banyan.v1 import tree_pb2


def to_wire(ending: Ending) -> tree_pb2.Ending:
    """Return the message of an ending."""
    return tree_pb2.Ending(
        place=ending.place, reason=ending.reason, cause=ending.cause, mac=ending.mac
    )


def from_wire(message: tree_pb2.Ending) -> Ending:
    """Return the ending of a message."""
    return Ending(message.place, message.reason, message.cause, message.mac)
