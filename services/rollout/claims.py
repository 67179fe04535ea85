"""Claims that are asked for together go to the store in one call."""

import asyncio
from collections.abc import Awaitable, Callable

from banyan.errors import BanyanError, NotFound, Refused, TemporaryError
from banyan.v1 import treestore_service_pb2 as ts

_MOST = 64
_LATER = "LATER"  # the answer was full
_Asked = tuple[ts.ClaimTreeRequest, "asyncio.Future[ts.ClaimTreeResponse]"]


class Claims:
    """What waits is bounded by who asks: each call returns with its own answer."""

    def __init__(self, call: Callable[[ts.ClaimTreesRequest], Awaitable[ts.ClaimTreesResponse]]) -> None:
        self._call = call
        self._waiting: list[_Asked] = []
        self._sending: asyncio.Task[None] | None = None

    async def ask(self, request: ts.ClaimTreeRequest) -> ts.ClaimTreeResponse:
        """The answer to one claim. Raises NotFound, Refused, or TemporaryError when the store cannot be reached."""
        answer: asyncio.Future[ts.ClaimTreeResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return await answer

    async def _send(self) -> None:
        while self._waiting:
            part, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            try:
                response = await self._call(ts.ClaimTreesRequest(claims=[request for request, _ in part]))
                if len(response.outcomes) != len(part):
                    raise TemporaryError(f"the store answered {len(response.outcomes)} of {len(part)} claims")
            except BanyanError as error:
                _settle([answer for _, answer in part], error)
                continue
            except BaseException:
                _settle([answer for _, answer in part], TemporaryError("the claim was not sent: this node is ending"))
                raise
            pairs = list(zip(part, response.outcomes, strict=True))
            self._waiting = [asked for asked, outcome in pairs if outcome.refused == _LATER] + self._waiting
            for (_, answer), outcome in pairs:
                if outcome.refused and outcome.refused != _LATER:
                    _settle([answer], _refusal(outcome))
                elif not outcome.refused and not answer.done():
                    answer.set_result(outcome.claim)


def _refusal(outcome: ts.ClaimOutcome) -> BanyanError:
    if outcome.refused == NotFound("").reason:
        return NotFound(outcome.detail)
    return Refused(outcome.detail, outcome.refused)


def _settle(answers: "list[asyncio.Future[ts.ClaimTreeResponse]]", error: BanyanError) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
