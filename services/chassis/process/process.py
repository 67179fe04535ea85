"""A service as a process: logging, telemetry, signals, the death of its parent, one-line errors."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from banyan.errors import BanyanError, InvalidInput, NotReady
from banyan.runtime.launch import find_users_code
from banyan.text.printable import printable
from services.chassis.process import resource_usage, telemetry
from services.chassis.process.parent_death import orphaned, tie_to_parent
from services.chassis.process.telemetry.log_lines import formatter

_CANCEL_AGAIN_S = 0.5
# A computing thread takes the interpreter back after each operation; Python's default of 5 ms would
# be a tenth of its step.
_SWITCH_S = 0.0005
ORPHAN_S = 60.0  # as long as a supervisor waits for a checkpoint


def main(
    service: str, run: Callable[[asyncio.Event], Awaitable[None]], orphan_s: float = ORPHAN_S
) -> None:
    """Run a service until SIGTERM or SIGINT sets the event that `run` receives.

    Exit with 0, or with the `exit_status` of an error. Without a living launcher nothing would kill
    a service that does not stop, so it ends itself `orphan_s` after the signal.
    """
    lines = logging.StreamHandler(sys.stderr)
    logging.basicConfig(level=os.environ.get("BANYAN_LOG_LEVEL", "info").upper(), handlers=[lines])
    try:
        lines.setFormatter(formatter(service))
        sys.setswitchinterval(_SWITCH_S)
        tie_to_parent()
        find_users_code()
        telemetry.setup(service)
        resource_usage.watch()
        # What the imports made never becomes garbage, and a pass over it holds up the loop.
        gc.collect()
        gc.freeze()
        asyncio.run(_until_stopped(run, orphan_s))
    except BanyanError as error:
        print(printable(f"{service}: {error}"), file=sys.stderr, flush=True)
        sys.exit(exit_status(error))
    finally:
        telemetry.shutdown()
        gc.freeze()  # the interpreter would visit all objects once more, for a second with torch


def exit_status(error: BanyanError) -> int:
    """Return 2 for errors that a restart cannot cure (bad input, an unsupported model), else 1."""
    return 2 if isinstance(error, InvalidInput | NotReady) else 1


async def _until_stopped(run: Callable[[asyncio.Event], Awaitable[None]], orphan_s: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        if orphaned():
            loop.call_later(orphan_s, os._exit, 1)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    # A command that became this process may have blocked signals until there is a handler.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    await run(stop)


async def first_of(*tasks: Awaitable[object]) -> None:
    """Wait until the first of several loops ends and cancel the others. Raise the first's error."""
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancelled(running)


async def cancelled(tasks: Sequence["asyncio.Future[Any]"]) -> None:
    """Cancel tasks and wait until they have ended.

    They are cancelled again until they end: a library may swallow a cancellation that arrives
    together with the result it waits for, as `asyncio.wait_for` of Python 3.11 does.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not log "never retrieved"
