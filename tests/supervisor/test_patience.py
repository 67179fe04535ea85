"""How many answers a process may miss, and when, before it is started again."""

import asyncio
from collections.abc import Sequence

import pytest

from services.supervisor.probes import Answer
from services.supervisor.watch import Patience, watched

QUICK = Patience(every_s=0.1)
SERVED, STARTING, LATE = Answer(True, True), Answer(False, True), Answer(True, False)


class Script:
    """A probe with scripted answers; the last one is repeated for ever."""

    def __init__(self, answers: Sequence[Answer | None]) -> None:
        self.answers, self.asked = list(answers), 0

    async def ask(self, timeout_s: float) -> Answer | None:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def aclose(self) -> None: ...


async def _nothing() -> None: ...


@pytest.mark.parametrize(
    ("answers", "asked", "why"),
    [
        ([SERVED, None], 4, "had no answer"),
        ([SERVED, None, None, SERVED, None], 7, "had no answer"),  # in a row
        # Before its first answer it only starts.
        ([None, None, None, None, SERVED, None], 8, "had no answer"),
        ([SERVED, LATE], 4, "NOT_SERVING"),
        # Also while it starts, once it has answered.
        ([STARTING, STARTING, None], 5, "had no answer"),
    ],
)
async def test_as_many_probes_in_a_row_must_fail(
    answers: list[Answer | None], asked: int, why: str
) -> None:
    probe = Script(answers)
    quick = Patience(every_s=0.001, misses=3)
    assert why in await asyncio.wait_for(watched(probe, "learner", quick, _nothing), 10.0)
    assert probe.asked == asked


async def test_a_start_has_a_deadline_for_its_first_answer_and_one_for_its_service() -> None:
    silent = await watched(Script([None]), "learner", Patience(answer_s=0.1), _nothing)
    assert silent == "it answered nothing within 0.1 s of its start"
    slow = await watched(
        Script([STARTING]), "learner", Patience(start_s={"learner": 0.1}), _nothing
    )
    assert slow == "it did not serve within 0.1 s of its start"


async def test_the_first_service_is_reported_once() -> None:
    calls: list[str] = []

    async def ready() -> None:
        calls.append("ready")

    await watched(
        Script([STARTING, SERVED, SERVED, None]),
        "learner",
        Patience(every_s=0.001, misses=2),
        ready,
    )
    assert calls == ["ready"]


async def test_a_process_that_tells_why_it_must_be_started_again_is_not_probed_further() -> None:
    script = Script([SERVED, Answer(True, True, "it refuses messages")])
    async with asyncio.timeout(10):
        assert await watched(script, "nats", QUICK, _nothing) == "it refuses messages"
