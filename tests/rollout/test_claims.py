"""Claims that are asked for together: one call, each its own answer, and nobody waits for an answer that cannot come."""

import asyncio

import pytest

from banyan.errors import NotFound, Refused, TemporaryError
from banyan.v1 import treestore_service_pb2 as ts
from services.rollout.claims import Claims


def ask(number: int) -> ts.ClaimTreeRequest:
    return ts.ClaimTreeRequest(tree_id=bytes([number]) * 32, node_id="n")


def granted(claim: ts.ClaimTreeRequest) -> ts.ClaimOutcome:
    return ts.ClaimOutcome(claim=ts.ClaimTreeResponse(epoch=claim.tree_id[0]))


async def test_what_is_asked_for_together_is_one_call() -> None:
    calls: list[int] = []

    async def call(request: ts.ClaimTreesRequest) -> ts.ClaimTreesResponse:
        calls.append(len(request.claims))
        await asyncio.sleep(0)
        return ts.ClaimTreesResponse(outcomes=[granted(claim) for claim in request.claims])

    claims = Claims(call)
    answers = await asyncio.gather(*(claims.ask(ask(n)) for n in range(1, 101)))
    assert [answer.epoch for answer in answers] == list(range(1, 101)) and calls == [64, 36]


async def test_each_has_its_own_refusal_and_what_comes_later_is_asked_for_again() -> None:
    async def call(request: ts.ClaimTreesRequest) -> ts.ClaimTreesResponse:
        response = ts.ClaimTreesResponse()
        for index, claim in enumerate(request.claims):
            number = claim.tree_id[0]
            if number in (1, 2):
                response.outcomes.add(refused="NOT_FOUND" if number == 1 else "OTHER_RUN", detail="no")
            elif index and number > 3:
                response.outcomes.add(refused="LATER")
            else:
                response.outcomes.append(granted(claim))
        return response

    claims = Claims(call)
    answers = await asyncio.wait_for(asyncio.gather(*(claims.ask(ask(n)) for n in range(1, 8)), return_exceptions=True), 5)
    assert isinstance(answers[0], NotFound)
    assert isinstance(answers[1], Refused) and answers[1].reason == "OTHER_RUN"
    assert [answer.epoch for answer in answers[2:]] == [3, 4, 5, 6, 7]  # type: ignore[union-attr]


@pytest.mark.parametrize("answers", [None, 0])
async def test_a_store_that_does_not_answer_is_said_to_all(answers: int | None) -> None:
    async def call(request: ts.ClaimTreesRequest) -> ts.ClaimTreesResponse:
        if answers is None:
            raise TemporaryError("away")
        return ts.ClaimTreesResponse()

    claims = Claims(call)
    for _ in range(2):  # and the next is asked for all the same
        found = await asyncio.wait_for(asyncio.gather(*(claims.ask(ask(n)) for n in (1, 2)), return_exceptions=True), 5)
        assert all(isinstance(error, TemporaryError) for error in found)
