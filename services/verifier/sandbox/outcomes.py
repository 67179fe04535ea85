"""The parent's check of a child's answer, which any code of a score may have written."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from banyan.plugins import Repair, Scored, Unscorable
from banyan.plugins.filter import MOST_REWARD

log = logging.getLogger(__name__)
MOST_PARTS = 64
_NAME_CHARACTERS = 64
REASON_CHARACTERS = 500


def outcomes(answer: Mapping[str, Any], count: int, scorer: str = "") -> list[Scored | Unscorable]:
    """Return one outcome for each completion; an answer about the group applies to all of them.

    scorer: name of the scorer, for the log.
    """
    items = answer.get("group")
    if isinstance(items, list) and _are_outcomes(items, count):
        return [_outcome(item, scorer) for item in items]
    return [_outcome(answer, scorer)] * count


def _are_outcomes(items: list[Any], count: int) -> bool:
    return len(items) == count and all(isinstance(item, dict) for item in items)


def _outcome(answer: Mapping[str, Any], scorer: str) -> Scored | Unscorable:
    if "unscorable" in answer:
        return sound(Unscorable(str(answer["unscorable"])))
    try:
        value = float(answer["value"])
        parts = {str(name): float(part) for name, part in answer["parts"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return Unscorable("NOT_A_NUMBER: the scorer's answer holds no number")
    try:
        return sound(Scored(value, parts, _repair(answer.get("repair"))), scorer)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return sound(Unscorable(f"EXCEPTION: the scorer's repair is invalid: {error}"))


def _repair(fields: Any) -> Repair | None:
    if fields is None:
        return None
    return Repair(
        keep=int(fields["keep"]),
        text=str(fields["text"]),
        step=int(fields["step"]),
        steps=int(fields["steps"]),
    )


def sound(outcome: Scored | Unscorable, scorer: str = "") -> Scored | Unscorable:
    """Return the outcome as it can be sent.

    That is finite numbers within limits, few parts, short names and reasons, all of it UTF-8. A
    repair that cannot be sent is left out, since a cut one would teach something else; the log
    names its scorer.
    """
    if isinstance(outcome, Unscorable):
        return Unscorable(plain(outcome.reason, REASON_CHARACTERS), outcome.retry)
    if len(outcome.parts) > MOST_PARTS:
        return Unscorable(
            f"TOO_LARGE: the scorer gave {len(outcome.parts)} parts; at most {MOST_PARTS} are kept"
        )
    parts = {plain(name, _NAME_CHARACTERS): part for name, part in outcome.parts.items()}
    numbers = (outcome.value, *parts.values())
    if not all(map(math.isfinite, numbers)):
        return Unscorable(f"NOT_A_NUMBER: the scorer gave {_shown(outcome.value, parts)}")
    if max(map(abs, numbers)) > MOST_REWARD:
        shown = _shown(outcome.value, parts)
        return Unscorable(
            f"TOO_LARGE: the scorer gave {shown}; rewards lie within ±{MOST_REWARD:g}"
        )
    return Scored(outcome.value, parts, _sendable(outcome.repair, scorer))


def _sendable(repair: Repair | None, scorer: str) -> Repair | None:
    fault = repair.unsendable() if repair is not None else ""
    if fault:
        log.warning("a repair of scorer %r is left out, its value stays: %s", scorer, fault)
    return None if fault else repair


def _shown(value: float, parts: Mapping[str, float]) -> str:
    return f"{value}, {parts}"[: REASON_CHARACTERS // 2]


def plain(text: str, most: int) -> str:
    """Return the beginning of a text, each lone surrogate replaced by a question mark.

    Messages cannot carry lone surrogates.
    """
    return text[:most].encode("utf-8", "replace").decode()
