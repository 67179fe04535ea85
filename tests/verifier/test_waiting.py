"""Leaves that the store lacks, or that cannot be scored now: retries, dead letters, log lines."""

import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.errors import TemporaryError
from banyan.v1 import events_pb2, tree_pb2, treestore_service_pb2
from services.verifier.consumer import LeafConsumer
from services.verifier.ports import Transcript, TreeStanding
from services.verifier.worker_loop import Job

LEAF = events_pb2.LeafFinished(
    run_id="r", tree_id=b"t" * 32, claim_epoch=1, leaf=tree_pb2.LeafRef(segment=b"s" * 32, end=3)
)


@dataclass
class _Delivery:
    attempts: int = 1
    answers: list[str] = field(default_factory=list)

    async def ack(self) -> None:
        self.answers.append("ack")

    async def nak(self, delay_s: float) -> None:
        self.answers.append("nak")


Found = tuple[list[Transcript], int]


class _Store:
    """A store that has the leaf from the `has_at`-th read on."""

    def __init__(self, standing: TreeStanding | None, has_at: int) -> None:
        self._standing, self._has_at, self.reads = standing, has_at, 0

    async def read_leaves(self, leaves: Any, deadline_s: float) -> Found:
        self.reads += 1
        return ([Transcript(run_id="r")] if self.reads >= self._has_at else []), 0

    async def standing(self, tree_id: bytes) -> TreeStanding | None:
        return self._standing


async def _answers(store: Any, attempts: int, handler: Any = None) -> list[str]:
    """Process one message of one leaf; return the answers to its delivery."""
    delivery = _Delivery(attempts)

    async def dead_letter(stream: str, delivery: Any, reason: str, service: str) -> None:
        delivery.answers.append(reason.split(":")[0])

    bus: Any = SimpleNamespace(dead_letter=dead_letter)
    label = f"leaf {LEAF.leaf.segment.hex()[:12]}"
    job: Any = Job(delivery=delivery, content=[LEAF], weight=1, label=label)
    await LeafConsumer(bus, store, handler, 8).process([job])
    return delivery.answers


@pytest.mark.parametrize(
    ("standing", "has_at", "attempts", "expected"),
    [
        (TreeStanding(2, False), 99, 1, ["ack"]),  # its claim is old: it will never be stored
        (
            TreeStanding(2, False),
            2,
            1,
            ["nak"],
        ),  # stored between the first read and the next claim
        (TreeStanding(1, False), 99, 1, ["nak"]),  # on its way
        (None, 99, 47, ["nak"]),
        (
            None,
            99,
            48,
            ["ABSENT"],
        ),  # its tree was never opened; it must not occupy a place forever
    ],
)
async def test_a_missing_leaf_is_retried_acked_or_a_dead_letter(
    standing, has_at, attempts, expected
) -> None:
    assert await _answers(_Store(standing, has_at), attempts) == expected


class _Has:
    """A store that has the leaf."""

    async def read_leaves(self, leaves: Any, deadline_s: float) -> Found:
        key = treestore_service_pb2.LeafKey(
            tree_id=LEAF.tree_id, leaf=LEAF.leaf, claim_epoch=LEAF.claim_epoch
        )
        return [Transcript(run_id="r", key=key)], 0


@pytest.mark.parametrize(
    "error", [ValueError("a mistake in the program"), TemporaryError("the broker is away")]
)
async def test_a_mistake_in_the_program_shows_where_it_was_made_and_the_leaf_comes_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def score(transcript: Transcript) -> None:
        raise error

    with caplog.at_level(logging.WARNING, "services.verifier.worker_loop"):
        assert await _answers(_Has(), 1, SimpleNamespace(score=score)) == ["nak"]
    (record,) = caplog.records
    assert LEAF.leaf.segment.hex()[:12] in record.getMessage() and str(error) in record.getMessage()
    if isinstance(error, ValueError):
        assert record.levelno == logging.ERROR and record.exc_info and record.exc_info[1] is error
    else:
        assert record.levelno == logging.WARNING and not record.exc_info


class _Narrow(_Has):
    """A store whose answers hold two leaves."""

    def __init__(self) -> None:
        self.requests: list[int] = []

    async def read_leaves(self, leaves: Any, deadline_s: float) -> Found:
        self.requests.append(len(leaves))
        found, _ = await super().read_leaves(leaves, deadline_s)
        return found, max(0, len(leaves) - 2)


async def test_leaves_that_an_answer_has_no_room_for_are_read_with_the_next() -> None:
    store: Any = _Narrow()
    consumer = LeafConsumer(SimpleNamespace(), store, None, 8)  # type: ignore[arg-type]
    answer = await consumer._read_all([LEAF] * 5)
    assert len(answer.transcripts) == 1 and not answer.refused
    assert store.requests == [5, 2, 1]


async def test_fewer_leaves_are_asked_for_while_answers_have_no_room_for_all() -> None:
    store: Any = _Narrow()
    consumer = LeafConsumer(SimpleNamespace(), store, None, 8)  # type: ignore[arg-type]
    await consumer._read_all([LEAF] * 70)
    assert store.requests[:3] == [64, 2, 4] and max(store.requests[1:]) == 4
    store.requests.clear()
    await consumer._read_all([LEAF])
    assert store.requests == [1]
