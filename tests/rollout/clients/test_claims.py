"""Claims that are asked for together: each its own answer or refusal, and those that an answer had no room for go again."""

import asyncio

import pytest

from banyan.errors import NotFound, Refused, TemporaryError
from banyan.v1 import treestore_service_pb2 as ts
from services.rollout.clients.claim_batcher import Claims


def ask(number: int) -> ts.ClaimTreeRequest:
    return ts.ClaimTreeRequest(tree_id=bytes([number]) * 32, node_id="n", ticket=1)


async def test_each_has_its_own_refusal_and_what_comes_later_is_asked_for_again() -> None:
    calls: list[int] = []

    async def call(request: ts.ClaimTreesRequest) -> ts.ClaimTreesResponse:
        calls.append(len(request.claims))
        response = ts.ClaimTreesResponse()
        for index, claim in enumerate(request.claims):
            number = claim.tree_id[0]
            if number in (1, 2):
                response.outcomes.add(
                    refused="NOT_FOUND" if number == 1 else "OTHER_RUN", detail="no"
                )
            elif index and number > 3:
                response.outcomes.add(refused="LATER")
            else:
                response.outcomes.add(claim=ts.ClaimTreeResponse(epoch=number))
        return response

    claims = Claims(call)
    answers = await asyncio.wait_for(
        asyncio.gather(*(claims.ask(ask(n)) for n in range(1, 8)), return_exceptions=True), 5
    )
    assert isinstance(answers[0], NotFound)
    assert isinstance(answers[1], Refused) and answers[1].reason == "OTHER_RUN"
    assert [answer.epoch for answer in answers[2:]] == [3, 4, 5, 6, 7]  # type: ignore[union-attr]
    assert calls == [7, 4, 3, 2, 1]


@pytest.mark.parametrize("answers", [None, 0])
async def test_a_store_that_does_not_answer_is_a_temporary_error(answers: int | None) -> None:
    async def call(request: ts.ClaimTreesRequest) -> ts.ClaimTreesResponse:
        if answers is None:
            raise TemporaryError("away")
        return ts.ClaimTreesResponse()

    claims = Claims(call)
    found = await asyncio.wait_for(
        asyncio.gather(*(claims.ask(ask(n)) for n in (1, 2)), return_exceptions=True), 5
    )
    assert all(isinstance(error, TemporaryError) for error in found)
