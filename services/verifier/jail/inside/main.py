"""The zygote: a warm interpreter that forks a confined process for each run.

Its parent sends one packet for a run, with the run's standard streams, over a socket. The program
and its input are in the first of these, so that the zygote never sees them: no run can find those
of another in its memory.
"""

import contextlib
import json
import os
import socket
from typing import Any

from banyan.programs.run import Limits
from services.verifier.jail.inside import bare, guard, namespaces, preload
from services.verifier.jail.inside.supervise import Ended
from services.verifier.sandbox.confinement import kernel, priority

_STREAMS = 3
_CELLS: dict[str, type[bare.Cell] | type[namespaces.Cell]] = {
    "process": bare.Cell,
    "namespaces": namespaces.Cell,
}


def main(handle: int) -> None:
    """Serve runs until the parent closes the channel. handle: descriptor of the channel."""
    niceness = priority.below(os.getppid())
    guard.protect(handle)
    priority.give_way(niceness)
    channel = socket.socket(fileno=handle)
    channel.set_inheritable(False)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    opening = json.loads(channel.recv(1 << 16))
    preload.preload()
    try:
        cell = _CELLS[opening["backend"]](opening["readable"], opening["listable"])
    except OSError as error:
        _send(channel, {"refused": str(error)})
        return
    try:
        _send(channel, {"ready": cell.rules})
        while _serve(cell, channel):
            pass
    finally:
        cell.close()


def _serve(cell: bare.Cell | namespaces.Cell, channel: socket.socket) -> bool:
    """Serve one run; return False where this process must end."""
    packet, streams, _, _ = socket.recv_fds(channel, 1 << 16, _STREAMS)
    if not packet:
        return False
    if guard.is_lost():
        return False
    if not streams:  # a word about a run that had ended when it came
        return True
    try:
        ended = cell.run(Limits(**json.loads(packet)), streams, channel)
    except OSError as error:
        _send(channel, {"refused": str(error)})
        return False
    finally:
        for stream in streams:
            os.close(stream)
    _send(channel, _report(ended))
    return ended.clean


def _report(ended: Ended) -> dict[str, Any]:
    return {
        "cause": ended.cause or "",
        "status": ended.status,
        "cpu_s": ended.cpu_s,
        "wall_s": ended.wall_s,
        "clean": ended.clean,
    }


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the parent has ended; the next packet says so
        channel.send(json.dumps(message).encode())
