"""Ends of attempts without an answer, and the verdict on a completion whose attempts end so.

The candidate's own causes make a wrong answer of it, the system's leave it without a score
(ADR 060).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from banyan.plugins import Scored, Unscorable
from banyan.programs.run import Outcome
from services.verifier.sandbox.outcomes import REASON_CHARACTERS, plain

TRIES = 2  # ends of a kind, the candidate's or the system's, that decide
AT_ONCE = (Outcome.CPU, Outcome.PROCESSES)  # seen from outside, so one decides


@dataclass(frozen=True, slots=True)
class End:
    """The end of an attempt without an answer.

    cause: who or what ended it.
    reason: the same for people, as the reason of a missing score.
    """

    cause: Outcome
    reason: str


def parsed(answer: Mapping[str, Any], deadline_s: float) -> End | None:
    """Return the end that a child reports; None for an answer."""
    if "ended" not in answer:
        return None
    cause = Outcome(answer["ended"])
    if cause not in (Outcome.WALL, Outcome.CPU):
        how = str(answer["how"])
        return End(cause, f"INFRASTRUCTURE: the scoring process ended with {how or cause}")
    left = "" if cause is Outcome.CPU else ", with processor time left"
    return End(cause, f"TIMEOUT: no answer in {deadline_s:g} s{left}")


def lost(why: str) -> End:
    """Return the end of an attempt whose child was lost."""
    return End(Outcome.LOST, f"INFRASTRUCTURE: {why}")


def final(ends: Sequence[End]) -> bool:
    """Return whether these ends decide, so that no other child tries."""
    last = ends[-1]
    alike = sum(end.cause.is_programs == last.cause.is_programs for end in ends)
    return alike >= TRIES or last.cause in AT_ONCE


def decided(ends: Sequence[End], wrong: float | None) -> Scored | Unscorable | None:
    """Return the outcome after these ends; None if another child is to try.

    wrong: value of a wrong answer; None for completions that are scored together, as one of them
        must not cost the others their scores.
    """
    last = ends[-1]
    if not final(ends):
        return None
    if last.cause.is_programs and wrong is not None:
        return Scored(wrong, {last.cause.part: 1.0})
    reason = f"{last.reason}; tried {len(ends)} times" if len(ends) > 1 else last.reason
    return Unscorable(plain(reason, REASON_CHARACTERS), retry=not last.cause.is_programs)
