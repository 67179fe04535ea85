"""Waits for the store are asked for together: trees that end together cost one call."""

import time
from collections.abc import Awaitable, Callable, Sequence

from banyan.errors import BanyanError
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.messaging.batcher import Batcher
from services.rollout.clients.claim_batcher import refusal

_MOST = 64
_TURN_MS = 1000  # of a call: a tree that the store lacks holds up those that end after it no longer


class Ingests:
    """A node's waits, each with its own answer and its own deadline."""

    def __init__(
        self,
        call: Callable[[ts.AwaitTreesIngestedRequest], Awaitable[ts.AwaitTreesIngestedResponse]],
    ) -> None:
        self._call = call
        self._together = Batcher[ts.AwaitIngestedRequest, ts.AwaitIngestedResponse](
            self._send, _MOST
        )

    async def ask(self, request: ts.AwaitIngestedRequest) -> ts.AwaitIngestedResponse:
        """What the store has of a tree, once it has all, lost some of it for good, or `deadline_ms` is over.

        Raises NotFound, Refused, or TemporaryError when the store cannot be reached.
        """
        end = time.monotonic() + request.deadline_ms / 1000
        while True:
            answer = await self._together.ask(request)
            whole = not answer.missing and (answer.grown or not request.grown)
            if whole or answer.refused or time.monotonic() >= end:
                return answer

    async def _send(
        self, requests: Sequence[ts.AwaitIngestedRequest]
    ) -> list[ts.AwaitIngestedResponse | BanyanError]:
        response = await self._call(
            ts.AwaitTreesIngestedRequest(trees=requests, deadline_ms=_TURN_MS)
        )
        return [
            o.answer if not o.refused else refusal(o.refused, o.detail) for o in response.outcomes
        ]
