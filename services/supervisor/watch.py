"""The watch over a process: it must serve in time, go on to answer, and make progress."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from services.supervisor.probes import Answer, Probe

_STARTING_EVERY_S = 0.05  # between two probes of a process that answers and does not serve yet
_FIRST_ANSWER_S = 1.0  # for an answer of a process that has not answered yet


def _start_s() -> Mapping[str, float]:
    """Return longer deadlines for some services.

    Models of hundreds of gigabytes take half an hour from a slow disk; their loading has a pulse
    with that deadline.
    """
    return {"learner": 2400.0, "rollout": 2400.0}


@dataclass(frozen=True, slots=True)
class Patience:
    """The longest silence of a process.

    Probes are counted and not seconds, so that no process counts as hung because the whole machine
    slept.
    """

    every_s: float = 5.0
    """Time for an answer, and between two probes."""
    misses: int = 6
    """Probes in a row without an answer, or answered by NOT_SERVING, of a hung process.

    Half a minute is ten times the longest observed halt of an event loop (2.8 s: a scorer of 64 kB
    in the verifier).
    """
    answer_s: float = 120.0
    """From the start to the first answer: imports on a loaded machine, a wait for the store."""
    start_s: Mapping[str, float] = field(default_factory=_start_s)
    """From the start to SERVING, by service."""
    start_others_s: float = 120.0
    """The same for all other services; longer than a start of the whole system."""

    def starting_s(self, service: str) -> float:
        """Return the longest time that a service may take to serve."""
        return self.start_s.get(service, self.start_others_s)


async def watched(
    probe: Probe, service: str, patience: Patience, ready: Callable[[], Awaitable[object]]
) -> str:
    """Watch a process until it hangs; return why it counts as hung.

    Await `ready` once, when it first serves.
    """
    begun = time.monotonic()
    answered = serves = False
    missed = 0
    while True:
        asked = time.monotonic()
        answer = await probe.ask(patience.every_s if answered else _FIRST_ANSWER_S)
        if answer is not None and answer.ready and not serves:
            serves = True
            await ready()
        if answer is not None and answer.why:
            return answer.why
        answered = answered or answer is not None
        missed = 0 if answer is not None and answer.alive else missed + answered
        if missed >= patience.misses:
            return _hang(answer, patience)
        if not serves and (why := _slow(answered, time.monotonic() - begun, service, patience)):
            return why
        pause_s = patience.every_s if serves or missed else _STARTING_EVERY_S
        await asyncio.sleep(max(_STARTING_EVERY_S, asked + pause_s - time.monotonic()))


def _hang(answer: Answer | None, patience: Patience) -> str:
    probes = f"{patience.misses} probes in a row, one every {patience.every_s:g} s,"
    if answer is None:
        return f"{probes} had no answer"
    return f"{probes} were answered by NOT_SERVING: a loop or thread hangs; its log names it"


def _slow(answered: bool, since_s: float, service: str, patience: Patience) -> str:
    """Return why a process that does not serve yet is too slow; empty while it has time left."""
    if not answered and since_s > patience.answer_s:
        return f"it answered nothing within {patience.answer_s:g} s of its start"
    limit_s = patience.starting_s(service)
    return f"it did not serve within {limit_s:g} s of its start" if since_s > limit_s else ""
