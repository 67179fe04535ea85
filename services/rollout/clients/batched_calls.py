"""Calls of the tree store for many trees at once: concurrent requests share one call."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from banyan.errors import NotFound, Refused
from banyan.reasons import Reason
from services.chassis.messaging.batcher import Batcher

_MOST = 64


class Outcome(Protocol):
    """Outcome of one request of a batched call: an answer, or a refusal with its reason."""

    @property
    def refused(self) -> str: ...

    @property
    def detail(self) -> str: ...


T = TypeVar("T")
OutcomeT = TypeVar("OutcomeT", bound=Outcome)


class BatchedCalls(Generic[T, OutcomeT]):
    """Batched calls of one RPC, each request with its own outcome.

    send: sends up to 64 requests in one call and returns an outcome for each, in their order.
    """

    def __init__(self, send: Callable[[Sequence[T]], Awaitable[Sequence[OutcomeT]]]) -> None:
        self._batcher = Batcher[T, OutcomeT](send, _MOST)

    async def ask(
        self, request: T, settled: Callable[[OutcomeT], bool] = lambda outcome: True
    ) -> OutcomeT:
        """Return the outcome of a request; send it again until it is `settled`.

        Raises NotFound or Refused with the store's reason, or TemporaryError when the store cannot
        be reached.
        """
        while True:
            outcome = await self._batcher.ask(request)
            if (
                outcome.refused == Reason.LATER
            ):  # the store answers at least one, so the rest gets its turn
                continue
            if outcome.refused:
                raise refusal(outcome.refused, outcome.detail)
            if settled(outcome):
                return outcome


def refusal(reason: str, detail: str) -> NotFound | Refused:
    """Return the error that a refused outcome stands for."""
    return NotFound(detail) if reason == Reason.NOT_FOUND else Refused(detail, reason)
