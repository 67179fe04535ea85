"""The start of children, one after the other, each of which gives way to services from its start.

A start blocks the loop for milliseconds, on a busy machine for more: with one at a time, the loop
comes to all else between two, and no crowd of them runs before it gives way.
"""

import asyncio
import weakref
from typing import Any

from services.verifier.sandbox.confinement import priority

_STARTING: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
    weakref.WeakKeyDictionary()
)


async def launch(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a child in a session of its own.

    options: of `asyncio.create_subprocess_exec`.
    """
    starting = _STARTING.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with starting:
        process = await asyncio.create_subprocess_exec(*command, start_new_session=True, **options)
        priority.yield_from_start(process.pid)
    return process
