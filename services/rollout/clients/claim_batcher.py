"""Claims that are asked for together go to the store in one call."""

from collections.abc import Awaitable, Callable, Sequence

from banyan.errors import BanyanError, NotFound, Refused
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.messaging.batcher import Batcher

_MOST = 64
_LATER = "LATER"  # the answer was full
_Claim = ts.ClaimTreeResponse | None  # None: ask again


class Claims:
    """A node's claims, each with its own answer."""

    def __init__(
        self, call: Callable[[ts.ClaimTreesRequest], Awaitable[ts.ClaimTreesResponse]]
    ) -> None:
        self._call = call
        self._together = Batcher[ts.ClaimTreeRequest, _Claim](self._send, _MOST)

    async def ask(self, request: ts.ClaimTreeRequest) -> ts.ClaimTreeResponse:
        """The answer to one claim. Raises NotFound, Refused, or TemporaryError when the store cannot be reached."""
        while (claim := await self._together.ask(request)) is None:
            pass  # those that the answer had room for are out of the way: the store answers one at least
        return claim

    async def _send(self, requests: Sequence[ts.ClaimTreeRequest]) -> list[_Claim | BanyanError]:
        response = await self._call(ts.ClaimTreesRequest(claims=requests))
        return [_answer(outcome) for outcome in response.outcomes]


def _answer(outcome: ts.ClaimOutcome) -> _Claim | BanyanError:
    if not outcome.refused:
        return outcome.claim
    return None if outcome.refused == _LATER else refusal(outcome.refused, outcome.detail)


def refusal(reason: str, detail: str) -> NotFound | Refused:
    """The error that an outcome stands for."""
    return NotFound(detail) if reason == NotFound("").reason else Refused(detail, reason)


class Renewals:
    """Renewals that are asked for together go to the store in one call, and there into one transaction."""

    def __init__(
        self, call: Callable[[ts.RenewClaimsRequest], Awaitable[ts.RenewClaimsResponse]]
    ) -> None:
        self._call = call
        self._together = Batcher[ts.RenewClaimRequest, None](self._send, _MOST)

    async def ask(self, request: ts.RenewClaimRequest) -> None:
        """Returns once the claim is renewed. Raises NotFound, Refused, or TemporaryError without an answer of the store."""
        await self._together.ask(request)

    async def _send(self, requests: Sequence[ts.RenewClaimRequest]) -> list[BanyanError | None]:
        response = await self._call(ts.RenewClaimsRequest(claims=requests))
        return [
            refusal(outcome.refused, outcome.detail) if outcome.refused else None
            for outcome in response.outcomes
        ]
