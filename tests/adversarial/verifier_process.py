"""The verifier as its own launcher starts it, with a sampler of its loop's lag beside it."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

from services.chassis.process import process
from services.verifier.__main__ import run
from tests.adversarial.lag import Lags, sample


async def run_sampled(stop: asyncio.Event) -> None:
    """Run the verifier; write the lags at the end."""
    lags = Lags()
    sampling = asyncio.create_task(sample(lags))
    try:
        await run(stop)
    finally:
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
        Path(os.environ["LAG_FILE"]).write_text(json.dumps(lags))


if __name__ == "__main__":
    process.main("verifier", run_sampled)
