"""Weight store `nccl`, the node's side: the engine's workers come to where the learner hands weights over (ADR 039).

What the engine is given is a manifest with a note where its bytes are to be had; its workers check them (vllm_received).
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput, TemporaryError
from banyan.recipe import Resources
from banyan.v1 import learner_service_pb2
from services.chassis.process import private_files
from services.chassis.weights import collective, file
from services.chassis.weights.collective import Place
from services.rollout.growth.policy_selection import Published

log = logging.getLogger(__name__)

Ask = Callable[[Published, list[str]], AsyncGenerator[learner_service_pb2.HandOverResponse, None]]
_INVITED_S = 20.0
_END_S = 5.0
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")


def workers(resources: Resources) -> int:
    """Processes of one vLLM that hold weights. Raises InvalidInput."""
    more: Mapping[str, Any] = resources.engine_settings.get("arguments") or {}
    sizes = {name: more.get(name, 1) for name in _SIZES}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise InvalidInput(
                f"resources.engine_settings.arguments.{name} {size!r} must be a whole number of at least 1"
            )
    return math.prod(sizes.values())


class Handed:
    """Manifests of policies whose weights a learner hands over. `ask` asks it, for workers that see these accelerators."""

    def __init__(self, folder: Path, ask: Ask, workers: int) -> None:
        self._folder, self._ask, self._workers = folder, ask, workers
        self._devices: list[str] | None = None
        self._last: tuple[bytes, Path] | None = None

    @contextlib.asynccontextmanager
    async def held(self, published: Published) -> AsyncIterator[Path]:
        """Manifest of a policy; workers that take it while it is held meet the learner. Raises BanyanError; then another
        try may help.

        The same weights under a new number (a step that changed nothing) are not handed over again.
        """
        if self._last is not None and self._last[0] == published.policy.digest:
            yield self._last[1]
            return
        self._last = None
        if self._devices is None:
            self._devices = await asyncio.to_thread(collective.devices)
        async with contextlib.aclosing(self._ask(published, self._devices)) as said:
            path = await self._invited(published, said)
            sent = asyncio.ensure_future(_sent(said))
            try:
                yield path
                self._last = published.policy.digest, path
                await asyncio.wait([sent], timeout=_END_S)
            finally:
                collective.forget(path)
                sent.cancel()
                await asyncio.wait([sent])
                if not sent.cancelled() and (error := sent.exception()) is not None:
                    log.warning("the learner says of the hand-over: %s", error)

    async def _invited(
        self, published: Published, said: AsyncGenerator[learner_service_pb2.HandOverResponse, None]
    ) -> Path:
        try:
            first = await asyncio.wait_for(anext(said), _INVITED_S)
        except (TimeoutError, StopAsyncIteration):
            where, step = published.address, published.policy.step
            raise TemporaryError(
                f"the learner at {where} does not say where weights of step {step} are handed over"
            ) from None
        path = self._folder / f"{published.name}.json"
        manifest = file.from_json(first.manifest_json, path.with_suffix(".bin"))
        if manifest.digest != published.policy.digest:
            raise InvalidInput(
                f"{published.address} hands over weights {manifest.digest.hex()[:12]}, which were not asked for"
            )
        how = first.transport, self._workers + 1, first.piece_bytes
        place = Place(first.host, first.port, first.token, *how)
        try:
            private_files.folder(self._folder)
            for old in self._folder.glob("policy-*"):
                old.unlink(missing_ok=True)
            path.write_text(first.manifest_json)
            collective.write(path, place)
        except OSError as error:
            raise TemporaryError(
                f"cannot write to {self._folder}: {error.strerror or error}; is there room?"
            ) from None
        return path


async def _sent(said: AsyncIterator[learner_service_pb2.HandOverResponse]) -> None:
    """Waits until the learner says that all was sent. Raises BanyanError where it says otherwise."""
    async for _ in said:
        pass
