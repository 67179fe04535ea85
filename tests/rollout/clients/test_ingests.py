"""Waits for the store that are asked for together: each its own answer, refusal and deadline."""

import asyncio

from banyan.errors import NotFound, Refused
from banyan.v1 import treestore_service_pb2 as ts
from services.rollout.clients.ingest_batcher import Ingests

Request, Response = ts.AwaitTreesIngestedRequest, ts.AwaitTreesIngestedResponse


def ask(number: int, deadline_ms: int = 5000) -> ts.AwaitIngestedRequest:
    ids = [bytes([number]) * 32]
    return ts.AwaitIngestedRequest(
        tree_id=ids[0], epoch=1, segment_ids=ids, grown=True, deadline_ms=deadline_ms
    )


class Store:
    """Has the trees from 10 on; those below 5 it refuses; the others it gets at the given call."""

    def __init__(self, comes_at: int = 1 << 30) -> None:
        self.calls: list[list[int]] = []
        self.comes_at = comes_at

    async def call(self, request: Request) -> Response:
        self.calls.append([one.tree_id[0] for one in request.trees])
        response = Response()
        for number in self.calls[-1]:
            if number < 5:
                response.outcomes.add(
                    refused="NOT_FOUND" if number == 1 else "STALE_EPOCH", detail="no"
                )
            else:
                there = number >= 10 or len(self.calls) >= self.comes_at
                missing = [] if there else [bytes([number]) * 32]
                response.outcomes.add(answer=ts.AwaitIngestedResponse(missing=missing, grown=there))
        return response


async def test_trees_that_end_together_are_one_call_each_with_its_own_answer() -> None:
    store = Store()
    ingests = Ingests(store.call)
    answers = await asyncio.gather(
        *(ingests.ask(ask(n)) for n in (1, 2, 10, 11)), return_exceptions=True
    )
    assert isinstance(answers[0], NotFound)
    assert isinstance(answers[1], Refused) and answers[1].reason == "STALE_EPOCH"
    assert all(
        isinstance(answer, ts.AwaitIngestedResponse) and answer.grown for answer in answers[2:]
    )
    assert store.calls == [[1, 2, 10, 11]]


async def test_a_tree_that_the_store_lacks_is_asked_for_again_and_holds_up_no_other() -> None:
    store = Store(comes_at=4)
    ingests = Ingests(store.call)
    late = asyncio.ensure_future(ingests.ask(ask(7)))
    assert (await asyncio.wait_for(ingests.ask(ask(10)), 5)).grown and not late.done()
    assert (await asyncio.wait_for(late, 5)).grown
    assert len(store.calls) == 4


async def test_after_its_deadline_it_says_what_is_missing() -> None:
    store = Store()
    answer = await asyncio.wait_for(Ingests(store.call).ask(ask(7, deadline_ms=0)), 5)
    assert list(answer.missing) == [bytes([7]) * 32] and not answer.grown
