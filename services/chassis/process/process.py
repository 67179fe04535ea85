"""A service as a process: logging, telemetry, signals, a parent that may die, and one-line errors."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from banyan.errors import BanyanError, InvalidInput, NotReady
from banyan.runtime.launch import find_users_code
from banyan.text.printable import PrintableFormatter, printable
from services.chassis.process import telemetry
from services.chassis.process.parent_death import orphaned, tie_to_parent

_CANCEL_AGAIN_S = 0.5
_SWITCH_S = 0.0005  # a thread that computes asks for the interpreter back after each operation; 5 ms is a tenth of its step
ORPHAN_S = 60.0  # as long as a supervisor waits for a checkpoint


def main(
    service: str, run: Callable[[asyncio.Event], Awaitable[None]], orphan_s: float = ORPHAN_S
) -> None:
    """Runs a service until SIGTERM or SIGINT sets the event that `run` gets. Exits 0, or as `exit_status` says.

    Once its launcher is dead nobody kills it if it does not end, so it does that itself after `orphan_s`.
    """
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(
        PrintableFormatter(f"%(asctime)s {service} %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=os.environ.get("BANYAN_LOG_LEVEL", "info").upper(), handlers=[lines])
    sys.setswitchinterval(_SWITCH_S)
    tie_to_parent()
    find_users_code()
    telemetry.setup(service)
    try:
        asyncio.run(_until_stopped(run, orphan_s))
    except BanyanError as error:
        print(printable(f"{service}: {error}"), file=sys.stderr, flush=True)
        sys.exit(exit_status(error))
    finally:
        telemetry.shutdown()


def exit_status(error: BanyanError) -> int:
    """2 for what a process was told and no start can cure, bad input or a model that is not done yet; 1 otherwise."""
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
    # A command that becomes this process may have held signals back until somebody listens.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    await run(stop)


async def first_of(*tasks: Awaitable[object]) -> None:
    """Waits until the first of several loops ends, cancels the others, and raises its error if it had one."""
    running = [asyncio.ensure_future(t) for t in tasks]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancelled(running)


async def cancelled(tasks: Sequence["asyncio.Future[Any]"]) -> None:
    """Cancels tasks and waits until they have ended.

    A library may swallow a cancellation that comes together with what it waits for (`asyncio.wait_for` of Python 3.11
    does), and a loop then goes on: so they are cancelled again until they end.
    """
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at, so that nobody is told that it was not
