"""A child's answer, checked by the parent, because whatever runs in a score may have written it."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from banyan.plugins import Repair, Scored, Unscorable
from banyan.view import MOST_REWARD

log = logging.getLogger(__name__)
MOST_PARTS = 64
_NAME_CHARACTERS = 64
REASON_CHARACTERS = 500


def outcomes(
    answer: Mapping[str, Any], count: int, deadline_s: float, scorer: str = ""
) -> list[Scored | Unscorable]:
    """One for each completion; what is said of the whole group holds for all of it. scorer: whose answer, for the log."""
    each = answer.get("group")
    if isinstance(each, list) and len(each) == count and all(isinstance(one, dict) for one in each):
        return [_outcome(one, deadline_s, scorer) for one in each]
    return [_outcome(answer, deadline_s, scorer)] * count


def _outcome(answer: Mapping[str, Any], deadline_s: float, scorer: str) -> Scored | Unscorable:
    if "timeout" in answer:
        return Unscorable(_late(answer, deadline_s))
    if "unscorable" in answer:
        return sound(Unscorable(str(answer["unscorable"])))
    try:
        value, parts = (
            float(answer["value"]),
            {str(k): float(v) for k, v in answer["parts"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return Unscorable("NOT_A_NUMBER: the scorer's answer holds no number")
    try:
        return sound(Scored(value, parts, _repair(answer.get("repair"))), scorer)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return sound(Unscorable(f"EXCEPTION: the scorer's repair is none: {error}"))


def _late(answer: Mapping[str, Any], deadline_s: float) -> str:
    processes = answer.get("processes")
    many = (
        f", and had {processes} processes" if isinstance(processes, int) and processes > 1 else ""
    )
    return f"TIMEOUT: the scorer gave no answer in {deadline_s:g} s{many}"


def _repair(said: Any) -> Repair | None:
    if said is None:
        return None
    return Repair(int(said["keep"]), str(said["text"]), int(said["step"]), int(said["steps"]))


def sound(outcome: Scored | Unscorable, scorer: str = "") -> Scored | Unscorable:
    """The outcome as it can be sent: finite numbers within limits, few parts, short names and reasons, all of it UTF-8.

    A repair that cannot be sent is left out, since a cut one would teach something else; the log
    names its scorer.
    """
    if isinstance(outcome, Unscorable):
        return Unscorable(plain(outcome.reason, REASON_CHARACTERS), outcome.retry)
    if len(outcome.parts) > MOST_PARTS:
        return Unscorable(
            f"TOO_LARGE: the scorer gave {len(outcome.parts)} parts; at most {MOST_PARTS} are kept"
        )
    parts = {plain(name, _NAME_CHARACTERS): part for name, part in outcome.parts.items()}
    if not all(map(math.isfinite, (outcome.value, *parts.values()))):
        return Unscorable(f"NOT_A_NUMBER: the scorer gave {_shown(outcome.value, parts)}")
    if max(map(abs, (outcome.value, *parts.values()))) > MOST_REWARD:
        shown = _shown(outcome.value, parts)
        return Unscorable(
            f"TOO_LARGE: the scorer gave {shown}; rewards lie within ±{MOST_REWARD:g}"
        )
    return Scored(outcome.value, parts, _sendable(outcome.repair, scorer))


def _sendable(repair: Repair | None, scorer: str) -> Repair | None:
    why = repair.unsendable() if repair is not None else ""
    if why:
        log.warning("a repair of scorer %r is left out, its value stays: %s", scorer, why)
    return None if why else repair


def _shown(value: float, parts: Mapping[str, float]) -> str:
    return f"{value}, {parts}"[: REASON_CHARACTERS // 2]


def plain(text: str, most: int) -> str:
    """The beginning of a text, with a question mark for each half of a character, which no message can carry."""
    return text[:most].encode("utf-8", "replace").decode()
