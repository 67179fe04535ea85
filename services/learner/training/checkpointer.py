"""The timing of checkpoints; a thread of their own writes them, one at a time, from a snapshot."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from banyan.errors import TemporaryError
from services.chassis.process import telemetry
from services.chassis.rpc.health import Pulse
from services.learner.checkpoints import checkpoint
from services.learner.checkpoints.checkpoint import Mark
from services.learner.training.trainer_thread import TorchThread

log = logging.getLogger(__name__)

_GUESSED_BYTES_PER_S = 200e6  # until the first one has been measured
_SLOWEST_BYTES_PER_S = 5e6  # of a disk that others write to as well
_LEAST_S = 600.0  # for a small one on a disk that hangs for a while


class Checkpointer:
    """Writes the checkpoints of one run, every `every` steps (0: by their cost).

    base: folder that configuration and tokenizer come from
    """

    def __init__(self, folder: Path, base: Path, torch_thread: TorchThread, every: int) -> None:
        self.folder, self._base = folder, base
        self._torch, self._every = torch_thread, every
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._cost_s = torch_thread.trained_bytes() / _GUESSED_BYTES_PER_S
        self._since = time.monotonic()
        self._last_step = -1
        self.pulse = Pulse("checkpoints")
        self._within_s = _LEAST_S + torch_thread.trained_bytes() / _SLOWEST_BYTES_PER_S
        self._writing: asyncio.Task[Path] | None = None

    def begin(self, step: int) -> None:
        """Count from `step`: nothing before it needs a checkpoint."""
        self._last_step, self._since = step, time.monotonic()

    async def consider(self, mark: Mark, step_trace: str = "") -> None:
        """Start a checkpoint in the background if it is due.

        A failure is logged, and the next try is made when the next checkpoint is due.

        step_trace: traceparent of the newest step
        """
        if self._writing is not None and self._writing.done():
            self._finish()
        if self._writing is None and self._due(mark.step):
            self._writing = asyncio.create_task(
                self._write(mark, copied=True, step_trace=step_trace)
            )

    def _due(self, step: int) -> bool:
        return checkpoint.due(
            every=self._every,
            step=step,
            last_step=self._last_step,
            since_s=time.monotonic() - self._since,
            cost_s=self._cost_s,
        )

    def _finish(self) -> None:
        """Log the failure of the background checkpoint, if it failed."""
        assert self._writing is not None
        try:
            self._writing.result()
        except TemporaryError as error:
            log.error("%s; training goes on, the next one is tried when it is due", error)
        self._writing = None

    async def keep(self, mark: Mark, step_trace: str = "") -> Path:
        """Write a checkpoint unless `mark` has one; return its folder. Raises TemporaryError."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
            self._finish()
        existing = self.folder / checkpoint.name_of(mark)
        if await asyncio.to_thread(checkpoint.read_mark, existing) == mark:
            return existing
        return await self._write(mark, copied=False, step_trace=step_trace)

    async def _write(self, mark: Mark, copied: bool, step_trace: str) -> Path:
        begun = time.monotonic()
        self.begin(mark.step)
        with telemetry.span(
            "learner.checkpoint",
            links=[step_trace],
            banyan_run=mark.run_id,
            banyan_policy_step=mark.step,
        ):
            snapshot = await self._torch.snapshot(mark, copied)
            loop = asyncio.get_running_loop()
            with self.pulse.during("writing a checkpoint", self._within_s):
                path = await loop.run_in_executor(
                    self._pool, checkpoint.write, self.folder, snapshot, self._base
                )
        self._cost_s = time.monotonic() - begun
        log.info("checkpoint %s in %.1f s", path, self._cost_s)
        return path

    def done(self) -> None:
        """End the thread after the checkpoint that it is writing."""
        self._pool.shutdown(wait=True)
