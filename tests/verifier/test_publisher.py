"""Scores that wait together: one message per run, with an id derived from those of its scores."""

import asyncio
from typing import Any

from banyan.errors import DeadlineMissed
from banyan.v1 import events_pb2
from services.chassis.messaging.bus import MAX_MESSAGE_BYTES
from services.verifier.publisher import BusPublisher


class _Bus:
    """A bus that keeps messages, and fails for those of the run `away`."""

    def __init__(self) -> None:
        self.said: list[tuple[str, list[str], str, str]] = []

    async def publish(
        self, subject: str, message: events_pb2.LeavesScored, msg_id: str, *, traceparent: str
    ) -> int:
        await asyncio.sleep(0)
        self.said.append(
            (subject, [score.verifier_id for score in message.scores], msg_id, traceparent)
        )
        if "away" in subject:
            raise DeadlineMissed("no ack")
        return len(self.said)


def _score(run_id: str, name: str) -> events_pb2.LeafScored:
    return events_pb2.LeafScored(run_id=run_id, verifier_id=name)


async def test_scores_that_wait_go_out_by_run_and_each_hears_of_its_own() -> None:
    bus: Any = _Bus()
    publisher = BusPublisher(bus)
    asked = [("here", "a", "t1"), ("away", "b", "t2"), ("here", "c", "t3")]
    ends = await asyncio.gather(
        *(publisher.publish(_score(run, name), f"id-{name}", trace) for run, name, trace in asked),
        return_exceptions=True,
    )
    assert ends[0] is None and ends[2] is None and isinstance(ends[1], DeadlineMissed)
    (here, names, msg_id, trace), away = bus.said
    assert (here, names, trace) == ("lineage.here.score", ["a", "c"], "") and msg_id.startswith(
        "scores-"
    )
    assert away == ("lineage.away.score", ["b"], "id-b", "t2")


async def test_a_large_score_takes_none_of_its_neighbours_along() -> None:
    """Messages are split by size, so that the broker refuses none of the others."""

    class _Narrow(_Bus):
        async def publish(
            self, subject: str, message: events_pb2.LeavesScored, msg_id: str, *, traceparent: str
        ) -> int:
            assert message.ByteSize() <= MAX_MESSAGE_BYTES
            return await super().publish(subject, message, msg_id, traceparent=traceparent)

    bus: Any = _Narrow()
    publisher = BusPublisher(bus)
    big = [_score("here", f"{number}") for number in range(43)]
    for score in big:
        score.scored.score.repair.text = "x" * 20_000
    ends = await asyncio.gather(
        *(publisher.publish(score, f"id-{n}", "") for n, score in enumerate(big))
    )
    assert ends == [None] * 43 and len(bus.said) > 1
    assert sorted(name for _, names, _, _ in bus.said for name in names) == sorted(
        str(n) for n in range(43)
    )
