"""reasoning-gym: the library's own scorers, always in a child process, one fork an answer.

Some of them `eval` the answer. The answer is the content of the last <answer> tag, or else the
whole completion. A scorer that raises on an answer marks it as malformed: 0, with the part
`raised`. An answer that a scorer would evaluate as code is read as a literal or as arithmetic
first; more than that is 0, with the part `refused`. Four scorers accept wrong constants and are
repaired here, or in `expressions`.

Two rules of the library pay for wrong answers, and count as 0 here: less than 0.1, which many
generators give to any text, and the share of an answer that is the right one as a part of it, which
pays for all answers in a row.
"""

import importlib.metadata
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from banyan.plugins import Row, Scored, Unscorable
from methods.filter.answers import tagged
from methods.filter.expressions import READ, Refused
from methods.filter.seen import seen

_FIELDS = ("dataset", "question", "answer", "metadata")
_TUPLES = ("arc_agi", "rearc")  # generators that compare grids as tuples, which JSON made lists
_LONGEST = 65_536  # characters of an answer; some of the library's parsers take seconds for more
_LEAST = 0.1  # that a part of a right answer is worth; less is given to any text
_made: dict[str, Any] = {}


@dataclass(slots=True)
class ReasoningGym:
    """Scorer of an answer by the generator that made the row."""

    tag: str = "answer"
    """Tag that holds the answer in a longer completion."""

    name: str = field(default="reasoning-gym", init=False)
    version: str = field(
        default_factory=lambda: f"{importlib.metadata.version('reasoning-gym')}+3", init=False
    )

    def warm(self, row: Row) -> None:
        """Build the row's generator, which is data of the task, so that forks share it."""
        if not _lacks(row):
            _dataset(row)

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return the generator's score; UNSCORABLE for a row that is not its own."""
        missing = _lacks(row)
        if missing:
            return Unscorable(
                f"EXCEPTION: the row has no field {missing[0]!r}; is it from a reasoning-gym task?"
            )
        answer = (tagged(completion, self.tag) or "").strip() or completion.strip()
        if not seen(answer):
            return Scored(0.0)
        if len(answer) > _LONGEST:
            return Scored(0.0, {"refused": 1.0})
        dataset = _dataset(row)
        try:
            value = _earned(_scored(dataset, answer, row), answer, row)
        except Refused:
            return Scored(0.0, {"refused": 1.0})
        except MemoryError:
            raise
        except Exception:
            # Dozens of foreign scorers raise anything on an answer that they cannot read.
            return Scored(0.0, {"raised": 1.0})
        return (
            Scored(value)
            if math.isfinite(value)
            else Unscorable(f"NOT_A_NUMBER: {row['dataset']} gave {value}")
        )


def _lacks(row: Row) -> list[str]:
    return [name for name in _FIELDS if name not in row]


def _dataset(row: Row) -> Any:
    key = json.dumps([row["dataset"], row.get("config", {})], sort_keys=True)
    if key not in _made:
        import reasoning_gym

        _made[key] = reasoning_gym.create_dataset(
            row["dataset"], size=1, seed=0, **row.get("config", {})
        )
    return _made[key]


def _scored(dataset: Any, answer: str, row: Row) -> float:
    repaired = _REPAIRED.get(row["dataset"])
    if repaired is not None and not repaired(answer, row):
        return 0.0
    read = READ.get(row["dataset"])
    answer = read(answer, row) if read is not None else answer
    metadata = _tuples(row["metadata"]) if row["dataset"] in _TUPLES else row["metadata"]
    entry = {"question": row["question"], "answer": row["answer"], "metadata": metadata}
    return float(dataset.score_answer(answer, entry))


def _earned(value: float, answer: str, row: Row) -> float:
    """Return the value, or 0 for one that the library gives to wrong answers."""
    right = str(row["answer"])
    is_contained = right.casefold() in answer.casefold() and math.isclose(
        value, len(right) / len(answer)
    )
    return 0.0 if value < _LEAST or (is_contained and value < 1) else value


def _close(answer: str, row: Row) -> bool:
    """Compare answers of coin_flip.

    Its own prefix rule gives '0' the full score for every 0.x, and its tolerance for every small
    one.
    """
    gold = Fraction(str(row["answer"]))
    return abs(Fraction(answer.replace(",", "")) - gold) <= min(
        Fraction(1, 10_000), abs(gold) / 100
    )


def _finite(answer: str, row: Row) -> bool:
    """Return whether an answer of complex_arithmetic is finite: its min(1, exp(-nan)) is 1."""
    return not any(word in answer.lower() for word in ("nan", "inf"))


def _same(answer: str, row: Row) -> bool:
    """Compare answers of game_of_life_halting: its bool('False') is true for every answer."""
    return answer.strip().lower() == str(row["answer"]).lower()


_REPAIRED = {"coin_flip": _close, "complex_arithmetic": _finite, "game_of_life_halting": _same}


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
