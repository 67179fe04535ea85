"""The frame of an attempt, as its warm child waits for it."""

import os
import select
import time
from typing import Any

from banyan.errors import InvalidInput
from banyan.programs.run import Outcome
from services.verifier.sandbox import frames
from services.verifier.sandbox.confinement import processes
from services.verifier.sandbox.limits import ROUNDS

_IDLE_SHARE = 0.03  # of the time, below which it waits for something else than the processor
_REASON_CHARACTERS = 500


def await_frame(
    reply: int, deadline_s: float, rounds: int = ROUNDS
) -> dict[str, Any] | Outcome | None:
    """Return the attempt's frame, or None if it ended without one.

    WALL when its time is over, and OUTPUT for more than an attempt of ours writes. An attempt that
    wants to run and got less than half of a deadline's processor time has more time to use it.
    """
    data = bytearray()
    start = time.monotonic()
    for number in range(1, rounds + 1):
        frame = _until(start + number * deadline_s, reply, data)
        if frame is not Outcome.WALL:
            return frame
        used_s = processes.cpu_s()
        if 2 * used_s >= deadline_s or used_s < _IDLE_SHARE * (time.monotonic() - start):
            break
    return Outcome.WALL


def _until(deadline: float, reply: int, data: bytearray) -> dict[str, Any] | Outcome | None:
    while (left_s := deadline - time.monotonic()) > 0:
        if not select.select([reply], [], [], left_s)[0]:
            break
        part = os.read(reply, 1 << 16)
        if not part:
            return None
        data += part
        size = frames.HEADER.unpack(data[:4])[0] if len(data) >= 4 else 0
        if size > frames.MAX_ANSWER_BYTES:
            return Outcome.OUTPUT
        if len(data) >= 4 + size and size:
            return _parsed(bytes(data[4 : 4 + size]))
    return Outcome.WALL


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        message = frames.parse(body)
        # A frame that a completion wrote itself may hold values that cannot be sent on, such as
        # NaN.
        frames.pack(message)
    except InvalidInput as error:
        reason = f"EXCEPTION: the scorer's answer cannot be read: {error}"
        return {"unscorable": reason[:_REASON_CHARACTERS]}
    return message
