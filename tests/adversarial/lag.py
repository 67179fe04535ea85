"""The lag of an event loop: how late it wakes. As a script, that of an idle loop beside others.

Lags come with their moments on the clock that all processes of a machine share.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

EVERY_S = 0.005
KEPT_S = 0.01  # lags that are written down
Lags = list[tuple[float, float]]  # moment, lag


async def sample(lags: Lags) -> None:
    """Note each lag above `KEPT_S` until cancelled."""
    while True:
        due = time.monotonic() + EVERY_S
        await asyncio.sleep(EVERY_S)
        if (lag := time.monotonic() - due) > KEPT_S:
            lags.append((due, lag))


def largest(file: Path, window: Sequence[float]) -> float:
    """Return the largest lag of a file, in seconds, that began within two moments."""
    lags: Lags = json.loads(file.read_text())
    return max((lag for at, lag in lags if window[0] <= at <= window[1]), default=0.0)


@contextmanager
def idle(file: Path) -> Iterator[None]:
    """Sample an idle loop in a process of its own, and write its lags at the end."""
    process = subprocess.Popen([sys.executable, "-P", __file__, str(file)])
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(20) == 0


async def _until_terminated(file: Path) -> None:
    stop, lags = asyncio.Event(), Lags()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    sampling = asyncio.create_task(sample(lags))
    await stop.wait()
    sampling.cancel()
    file.write_text(json.dumps(lags))


if __name__ == "__main__":
    asyncio.run(_until_terminated(Path(sys.argv[1])))
