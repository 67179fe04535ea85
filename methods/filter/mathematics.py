"""math: 1 if the completion's final expression equals the row's answer, else 0.

The comparison is math-verify's (huggingface/Math-Verify 0.9.0): a computer algebra system on the
expression in the last \\boxed{}, else behind the words "final answer", else in the last $...$, else
on the last plain number or arithmetic. So 1/2, 0.5 and \\frac{1}{2} are one answer. An algebra
system may take any time on an expression that a model wrote: it runs in a child process, each of
its three steps ends after `seconds` of processor time, and what it could not read or compare is 0.

Three things of the library are mended here: it reads 1e3 as 1; words, in an answer of the row, as
products of their letters; and rounds small numbers to 0, which then equals them.
"""

import importlib.metadata
import importlib.util
import logging
import math
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from banyan.plugins import Row, Scored, Unscorable, checks
from banyan.runtime import processor_time
from banyan.runtime.distribution import install

_TAIL = 8192  # characters of a completion's end; the library's patterns take 0.2 s on so many
_LONGEST = 1000  # characters of a row's answer
_LINE = 200  # characters of a last line that may be an expression without marks
_OPENINGS = "([{\\"  # of tuples, intervals, sets and LaTeX
_MARKED = ("$", "\\boxed", "\\(", "\\[")
_SCIENTIFIC = re.compile(r"(?<![\w.])([0-9]{1,40}(?:\.[0-9]{1,40})?)[eE]([-+]?[0-9]+)(?!\w)")
_MOST_POWER = 64  # of a number such as 1e3
_WORDS = re.compile(r"[A-Za-z\s]*[A-Za-z]{3,}[A-Za-z\s]*")


def _version() -> str:
    missing = [name for name in ("math_verify", "antlr4") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"it needs {missing[0]}, which is not installed: {install('verifier')}")
    return f"{importlib.metadata.version('math-verify')}+1"


@dataclass(slots=True)
class Mathematics:
    """Comparison of a completion's final expression with a field of the row."""

    answer: str = "answer"
    """Field of the row that holds the right answer: a number, or a text in plain form or LaTeX."""
    decimals: int = 6
    """Decimal places in which a number with a fraction must be right; below 1, digits."""
    strict: bool = True
    """Names of variables count. Kinds of brackets may not: the library takes (1, 2) for {1, 2}."""
    seconds: float = 2.0
    """Processor time of reading the answer, of reading the completion, and of comparing them."""

    name: str = field(default="math", init=False)
    version: str = field(default_factory=_version, init=False)

    def __post_init__(self) -> None:
        checks.whole(self, ("decimals",), 0, 15)
        checks.finite(self, ("seconds",))
        if not 0.01 <= self.seconds <= 60.0:
            raise ValueError(f"seconds must lie in 0.01..60, got {self.seconds:g}")
        checks.like("strict", self.strict, True)
        checks.like("answer", self.answer, "")

    def warm(self, row: Row) -> None:
        """Import the library and build its grammar, so that forks share them."""
        self._parsed("$\\frac{1}{2}$ and \\boxed{2}")

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return 1 or 0; UNSCORABLE if the row's answer is no expression."""
        text = _text(row.get(self.answer))
        right = self._parsed(text if any(mark in text for mark in _MARKED) else f"${text}$")
        if not text.strip() or _WORDS.fullmatch(text) or not right:
            return Unscorable(
                f"EXCEPTION: field {self.answer!r} of the row is "
                f"{checks.field_shown(row, self.answer)}, not a mathematical expression"
            )
        given = self._given(completion)
        same = bool(given) and self._same(right[-1], given)
        return Scored(float(same), {"read": float(bool(given))})

    def _same(self, right: Any, given: list[Any]) -> bool:
        from math_verify import verify

        places = _places(right, self.decimals)
        try:
            with processor_time.within(self.seconds):
                return bool(
                    verify(
                        [right],
                        given,
                        float_rounding=places,
                        strict=self.strict,
                        timeout_seconds=None,
                    )
                )
        except processor_time.Over:
            return False

    def _given(self, completion: str) -> list[Any]:
        """Return the expression that a completion gives; empty without any."""
        text = _plain_numbers(completion[-_TAIL:])
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        if not lines:
            return []
        bare = not any(mark in text for mark in _MARKED) and len(lines[-1]) <= _LINE
        if bare and lines[-1][0] in _OPENINGS:  # of which the library would read a number
            return self._parsed(f"${lines[-1]}$")
        return self._parsed(text) or (self._parsed(f"${lines[-1]}$") if bare else [])

    def _parsed(self, text: str) -> list[Any]:
        from math_verify import parse

        # It would log texts of models.
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)
        try:
            with processor_time.within(self.seconds):
                parsed: list[Any] = parse(text, fallback_mode="no_fallback", parsing_timeout=None)
                return parsed
        except processor_time.Over:
            return []


def _text(value: object) -> str:
    """Return a row's answer as text; empty if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:
        return ""
    text = _plain_numbers(str(value).strip())
    return text if len(text) <= _LONGEST else ""


def _plain_numbers(text: str) -> str:
    """Return a text with numbers such as 1.5e3 written out; without those far out of range."""
    return _SCIENTIFIC.sub(_written_out, text)


def _written_out(match: "re.Match[str]") -> str:
    if len(match[2]) > 4 or abs(int(match[2])) > _MOST_POWER:
        return ""
    return format(Decimal(match[1]).scaleb(int(match[2])), "f")


def _places(right: Any, decimals: int) -> int:
    """Return the decimal places in which an answer counts: so many digits, if it is below 1."""
    size = abs(float(right)) if getattr(right, "is_Number", False) else 0.0
    return decimals - math.floor(math.log10(size)) - 1 if 0.0 < size < 1.0 else decimals
