"""Weight store `nccl`, on the node: the engine's workers meet the learner (ADR 039).

The engine gets a manifest with a note of the place where the bytes are to be received; its workers
check them (engines/vllm_engine).
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
from banyan.v1.learner_service_pb2 import HandOverResponse
from services.chassis.process import private_files
from services.chassis.weights import collective, file
from services.chassis.weights.collective import Place
from services.rollout.growth.policy_selection import Published

log = logging.getLogger(__name__)

HandOver = Callable[[Published, list[str]], AsyncGenerator[HandOverResponse, None]]
"""Call of the learner: (policy, accelerators that the workers see) → its responses."""

_INVITATION_S = 20.0
_END_S = 5.0
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")


def workers(resources: Resources) -> int:
    """Return the number of processes of one vLLM that hold weights. Raises InvalidInput."""
    arguments: Mapping[str, Any] = resources.engine_settings.get("arguments") or {}
    sizes = {name: arguments.get(name, 1) for name in _SIZES}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise InvalidInput(
                f"resources.engine_settings.arguments.{name} {size!r} must be a whole number"
                " of at least 1"
            )
    return math.prod(sizes.values())


class CollectiveWeights:
    """Manifests of policies whose weights a learner hands over.

    folder: folder for manifests.
    hand_over: call of the learner.
    workers: number of the engine's workers that receive weights.
    """

    def __init__(self, folder: Path, hand_over: HandOver, workers: int) -> None:
        self._folder, self._hand_over, self._workers = folder, hand_over, workers
        self._devices: list[str] | None = None
        self._last: tuple[bytes, Path] | None = None  # digest and manifest

    @contextlib.asynccontextmanager
    async def held(self, published: Published) -> AsyncIterator[Path]:
        """Provide the manifest of a policy; workers that load it within the block meet the learner.

        The same weights under a new number (a step that changed nothing) are not handed over again.

        Raises BanyanError; another try may help.
        """
        if self._last is not None and self._last[0] == published.policy.digest:
            yield self._last[1]
            return
        self._last = None
        if self._devices is None:
            self._devices = await asyncio.to_thread(collective.devices)
        async with contextlib.aclosing(self._hand_over(published, self._devices)) as responses:
            manifest_path = await self._invitation(published, responses)
            end = asyncio.ensure_future(_end(responses))
            try:
                yield manifest_path
                self._last = (published.policy.digest, manifest_path)
                await asyncio.wait([end], timeout=_END_S)
            finally:
                collective.forget(manifest_path)
                end.cancel()
                await asyncio.wait([end])
                if not end.cancelled() and (error := end.exception()) is not None:
                    log.warning("the hand-over failed at the learner: %s", error)

    async def _invitation(
        self, published: Published, responses: AsyncGenerator[HandOverResponse, None]
    ) -> Path:
        """Wait for the learner's place; return the manifest, with a note of the place beside it."""
        try:
            response = await asyncio.wait_for(anext(responses), _INVITATION_S)
        except (TimeoutError, StopAsyncIteration):
            raise TemporaryError(
                f"the learner at {published.address} does not say where weights of step"
                f" {published.policy.step} are handed over"
            ) from None
        path = self._folder / f"{published.name}.json"
        manifest = file.from_json(response.manifest_json, path.with_suffix(".bin"))
        if manifest.digest != published.policy.digest:
            raise InvalidInput(
                f"{published.address} hands over weights {manifest.digest.hex()[:12]}, which were"
                " not asked for"
            )
        place = Place(
            host=response.host,
            port=response.port,
            token=response.token,
            transport=response.transport,
            ranks=self._workers + 1,
            piece_bytes=response.piece_bytes,
        )
        try:
            private_files.folder(self._folder)
            for old in self._folder.glob("policy-*"):
                old.unlink(missing_ok=True)
            path.write_text(response.manifest_json)
            collective.write(path, place)
        except OSError as error:
            problem = error.strerror or error
            raise TemporaryError(
                f"cannot write to {self._folder}: {problem}; is there room?"
            ) from None
        return path


async def _end(responses: AsyncIterator[HandOverResponse]) -> None:
    """Wait until the learner reports that all was sent. Raises BanyanError if it was not."""
    async for _ in responses:
        pass
