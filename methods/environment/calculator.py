"""calculator: arithmetic of whole and decimal numbers, computed exactly.

A call is an expression between two marks, `<calc>` and `</calc>` by default, with numbers,
+ - * / // % ** and parentheses. It changes nothing, so no place's answer is computed twice.
"""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from banyan.environments.observation import ToolOutcome
from banyan.plugins import Row
from banyan.plugins.environment import Answer

_LONGEST = 200  # characters of an expression
_MOST_DIGITS = 100
_MOST_POWER = 64
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}


class _Wrong(ValueError):
    """An expression that has no value here; the text says why."""


@dataclass(frozen=True)
class Calculator:
    """Answers with the value, or with what is wrong with the call."""

    digits: int = 10
    """Decimal places of results that are no whole numbers."""

    begin: str = "<calc>"
    """Mark before an expression."""
    end: str = "</calc>"
    """Mark behind it, with which the action ends."""

    name: str = field(default="calculator", init=False)
    version: str = field(default="1", init=False)
    deterministic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.digits) is not int or not 0 <= self.digits <= _MOST_DIGITS:
            raise ValueError(
                f"digits must be a whole number in 0..{_MOST_DIGITS}, got {self.digits!r}"
            )
        for name in ("begin", "end"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} must be a text, got {getattr(self, name)!r}")

    def about(self) -> str:
        """Return the text that tells a model of the calculator."""
        return (
            "You may use a calculator: it answers an expression with numbers, + - * / // % ** and"
            f" parentheses. A call is {self.begin}12 * (3 + 4.5){self.end}"
        )

    def reset(self, row: Row, seed: int) -> bytes:
        """Return the only state."""
        return b""

    def step(self, state: bytes, action: str) -> Answer:
        """Compute the last call of an action."""
        call, end, _ = action.rpartition(self.end)
        _, begin, expression = call.rpartition(self.begin)
        if not end or not begin:
            return Answer(f"error: no {self.begin}…{self.end}", outcome=ToolOutcome.MALFORMED)
        try:
            return Answer(self._shown(_value(_parsed(expression.strip()))))
        except _Wrong as error:
            return Answer(f"error: {error}", outcome=ToolOutcome.FAILED)

    def _shown(self, value: Fraction) -> str:
        if value.denominator == 1:
            return str(value.numerator)
        text = f"{round(value * 10**self.digits):0{self.digits + 1}d}"
        sign, digits = ("-", text[1:].zfill(self.digits + 1)) if value < 0 else ("", text)
        whole, part = digits[: len(digits) - self.digits], digits[len(digits) - self.digits :]
        return f"{sign}{whole}.{part.rstrip('0') or '0'}"


def _parsed(expression: str) -> ast.expr:
    if len(expression) > _LONGEST:
        raise _Wrong(f"more than {_LONGEST} characters")
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _Wrong("no arithmetic") from None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=bool() | complex()):
            raise _Wrong("no number")
        case ast.Constant(value=int() as number):
            return _bounded(Fraction(number))
        case ast.Constant(value=float() as number):
            return _bounded(_decimal(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _applied(_OPERATORS[type(sign)], _value(left), _value(right))
    raise _Wrong("only numbers, + - * / // % ** and parentheses")


def _decimal(number: float) -> Fraction:
    try:
        return Fraction(repr(number))  # as it is written, not as it is stored
    except (ValueError, OverflowError):
        raise _Wrong("no finite number") from None


def _applied(
    function: Callable[[Fraction, Fraction], Fraction], left: Fraction, right: Fraction
) -> Fraction:
    try:
        return _bounded(function(left, right))
    except ZeroDivisionError:
        raise _Wrong("division by zero") from None


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _MOST_POWER:
        raise _Wrong(f"exponents are whole numbers up to {_MOST_POWER}")
    if base == 0 and exponent < 0:
        raise _Wrong("division by zero")
    return _bounded(base ** int(exponent))


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 10**_MOST_DIGITS:
        raise _Wrong(f"more than {_MOST_DIGITS} digits")
    return value
