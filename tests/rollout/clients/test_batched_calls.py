"""Batched calls: each request gets its own outcome, refusal or repetition."""

import asyncio
from collections.abc import Sequence

import pytest

from banyan.errors import BanyanError, NotFound, Refused, TemporaryError
from banyan.v1 import treestore_service_pb2 as ts
from services.rollout.clients.batched_calls import BatchedCalls
from services.rollout.clients.treestore import _settled_by
from services.treestore.lifecycle.claim_batch import MAX_CLAIMS
from services.treestore.lifecycle.waits import MAX_TREES

REFUSED = {1: "NOT_FOUND", 2: "OTHER_RUN"}


def number_of(request: ts.ClaimTreeRequest | ts.AwaitIngestedRequest) -> int:
    return request.tree_id[0]


def claim(number: int) -> ts.ClaimTreeRequest:
    return ts.ClaimTreeRequest(tree_id=bytes([number]) * 32, node_id="n", ticket=1)


def ingest(number: int) -> ts.AwaitIngestedRequest:
    return ts.AwaitIngestedRequest(tree_id=bytes([number]) * 32, epoch=1, grown=True)


async def test_each_request_has_its_own_refusal_and_late_ones_are_sent_again() -> None:
    calls: list[int] = []

    async def send(requests: Sequence[ts.ClaimTreeRequest]) -> list[ts.ClaimOutcome]:
        """Answer the first request; tell the others to come again, unless they are refused."""
        calls.append(len(requests))
        outcomes = []
        for index, number in enumerate(map(number_of, requests)):
            if number in REFUSED:
                outcomes.append(ts.ClaimOutcome(refused=REFUSED[number], detail="no"))
            elif index and number > 3:
                outcomes.append(ts.ClaimOutcome(refused="LATER"))
            else:
                outcomes.append(ts.ClaimOutcome(claim=ts.ClaimTreeResponse(epoch=number)))
        return outcomes

    claims = BatchedCalls(send)
    waits = [claims.ask(claim(number)) for number in range(1, 8)]
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*waits, return_exceptions=True)
    assert isinstance(answers[0], NotFound)
    assert isinstance(answers[1], Refused) and answers[1].reason == "OTHER_RUN"
    epochs = [outcome.claim.epoch for outcome in answers[2:]]  # type: ignore[union-attr]
    assert epochs == [3, 4, 5, 6, 7]
    assert calls == [7, 4, 3, 2, 1]


@pytest.mark.parametrize("error", [TemporaryError("away"), None])
async def test_a_store_that_does_not_answer_is_a_temporary_error(error: BanyanError | None) -> None:
    async def send(requests: Sequence[ts.ClaimTreeRequest]) -> list[ts.ClaimOutcome]:
        if error is not None:
            raise error
        return []

    claims = BatchedCalls(send)
    waits = [claims.ask(claim(number)) for number in (1, 2)]
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*waits, return_exceptions=True)
    assert all(isinstance(answer, TemporaryError) for answer in answers)


class Store:
    """A store that has the trees from 10 on, and gets the others at a certain call."""

    def __init__(self, comes_at: int = 1 << 30) -> None:
        self.calls: list[list[int]] = []
        self.comes_at = comes_at

    async def send(self, requests: Sequence[ts.AwaitIngestedRequest]) -> list[ts.IngestOutcome]:
        numbers = [number_of(request) for request in requests]
        self.calls.append(numbers)
        return [self._outcome(number) for number in numbers]

    def _outcome(self, number: int) -> ts.IngestOutcome:
        if number in REFUSED:
            return ts.IngestOutcome(refused=REFUSED[number], detail="no")
        is_stored = number >= 10 or len(self.calls) >= self.comes_at
        missing = [] if is_stored else [bytes([number]) * 32]
        answer = ts.AwaitIngestedResponse(missing=missing, grown=is_stored)
        return ts.IngestOutcome(answer=answer)


async def test_trees_that_end_together_are_one_call() -> None:
    store = Store()
    ingests = BatchedCalls(store.send)
    waits = [ingests.ask(ingest(number), _settled_by(5.0)) for number in (1, 2, 10, 11)]
    answers = await asyncio.gather(*waits, return_exceptions=True)
    assert isinstance(answers[0], NotFound) and isinstance(answers[1], Refused)
    assert all(outcome.answer.grown for outcome in answers[2:])  # type: ignore[union-attr]
    assert store.calls == [[1, 2, 10, 11]]


async def test_a_tree_that_the_store_lacks_holds_up_no_other() -> None:
    store = Store(comes_at=4)
    ingests = BatchedCalls(store.send)
    late = asyncio.ensure_future(ingests.ask(ingest(7), _settled_by(5.0)))
    async with asyncio.timeout(5):
        assert (await ingests.ask(ingest(10), _settled_by(5.0))).answer.grown and not late.done()
        assert (await late).answer.grown
    assert len(store.calls) == 4


async def test_after_its_deadline_a_wait_returns_what_is_missing() -> None:
    async with asyncio.timeout(5):
        outcome = await BatchedCalls(Store().send).ask(ingest(7), _settled_by(0.0))
    assert list(outcome.answer.missing) == [bytes([7]) * 32] and not outcome.answer.grown


async def test_a_call_has_at_most_as_many_requests_as_the_store_takes() -> None:
    most, store = min(MAX_CLAIMS, MAX_TREES), Store()
    ingests = BatchedCalls(store.send)
    waits = [ingests.ask(ingest(number), _settled_by(5.0)) for number in range(10, 11 + most)]
    async with asyncio.timeout(5):
        await asyncio.gather(*waits)
    assert [len(call) for call in store.calls] == [most, 1]
