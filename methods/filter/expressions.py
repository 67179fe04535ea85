"""Answers that reasoning-gym would evaluate as Python, a helper of its scorer.

They are read as literals or arithmetic, and refused if they are more. Nine generators call `eval`
or sympy's `parse_expr`, which is `eval`, on the model's answer. The frames around that call hold
the row with its answer, so plain text such as `oracle_answer`, or a comprehension over
`entry['metadata']`, would be paid. Calls that repeat the question (`Integral(…)`) or have sympy
answer it (`expand(…)`) are refused likewise.
"""

import ast
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Check = Callable[[str, Mapping[str, Any]], str]

_LONGEST = 4_000  # characters
_MOST_POWER = 200  # product of nested exponents: no tower that never ends
_TRIGONOMETRIC = ("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan")
_HYPERBOLIC = ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
_ELEMENTARY = frozenset((*_TRIGONOMETRIC, *_HYPERBOLIC, "exp", "log", "ln", "sqrt", "Abs"))
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)


class Refused(ValueError):
    """Error of an answer that is more than a literal or arithmetic."""


def literal(answer: str, row: Mapping[str, Any]) -> str:
    """Return the answer if it is the right text or a literal. Raises Refused."""
    right = row["metadata"].get("valid_answers") or [row["answer"]]
    if answer.strip() in [str(text).strip() for text in right]:
        return answer
    if len(answer) > _LONGEST:
        raise Refused(f"an answer of {len(answer)} characters")
    try:
        ast.literal_eval(answer)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise Refused("no literal") from None
    return answer


def whole_numbers(answer: str, row: Mapping[str, Any]) -> str:
    """Return the answer as arithmetic of whole numbers, without comments. Raises Refused."""
    tree = _parsed(answer)
    _check(tree, frozenset(), frozenset())
    if any(not isinstance(number, int) for number in _numbers(tree)) or _powers(tree) > 1:
        raise Refused("something else than whole numbers and + - * /")
    return ast.unparse(tree)


def game24(answer: str, row: Mapping[str, Any]) -> str:
    """Return the answer if it uses the row's numbers, each as often, and is exactly 24.

    Raises Refused. The generator's own rule accepts any four numbers for every row, and all that is
    24 when cut to a whole number.
    """
    text = whole_numbers(answer, row)
    tree = _parsed(text)
    if sorted(map(int, _numbers(tree))) != sorted(row["metadata"]["numbers"]):
        raise Refused("other numbers than the row's")
    try:
        value = _value(tree)
    except ZeroDivisionError:
        raise Refused("a division by zero") from None
    if value != 24:
        raise Refused(f"{value}, not 24")
    return text


def polynomial(answer: str, row: Mapping[str, Any]) -> str:
    """Return the answer as a polynomial in single letters. Raises Refused."""
    tree = _parsed(answer)
    _check(tree, frozenset("abcdefghijklmnopqrstuvwxyz"), frozenset())
    return ast.unparse(tree)


def antiderivative(answer: str, row: Mapping[str, Any]) -> str:
    """Return the answer as a formula of elementary functions in the row's variable and C.

    Raises Refused.
    """
    tree = _parsed(answer)
    _check(tree, frozenset({row["metadata"]["variable"], "C", "E", "pi"}), _ELEMENTARY)
    return ast.unparse(tree)


READ: Mapping[str, Check] = {
    "binary_matrix": literal,
    "countdown": whole_numbers,
    "intermediate_integration": antiderivative,
    "n_queens": literal,
    "polynomial_multiplication": polynomial,
    "puzzle24": game24,
    "simple_integration": antiderivative,
    "spiral_matrix": literal,
    "string_insertion": literal,
}


def _parsed(answer: str) -> ast.expr:
    if len(answer) > _LONGEST:
        raise Refused(f"an answer of {len(answer)} characters")
    try:
        return ast.parse(answer.strip(), mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise Refused("no expression") from None


def _check(tree: ast.expr, names: frozenset[str], functions: frozenset[str]) -> None:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in (
            functions if id(node) in called else names
        ):
            raise Refused(f"the name {node.id!r:.60}")
        if isinstance(node, ast.Call) and (
            node.keywords or not isinstance(node.func, ast.Name) or len(node.args) != 1
        ):
            raise Refused("a call of something else than an elementary function")
        if isinstance(node, ast.Constant) and not _number(node.value):
            raise Refused(f"the constant {node.value!r:.60}")
        if not isinstance(node, _ALLOWED):
            raise Refused(type(node).__name__)
    if _powers(tree) > _MOST_POWER:
        raise Refused("powers of powers")


_ALLOWED = (
    *(ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load, ast.Call),
    *(*_OPERATORS, ast.Pow, ast.UAdd, ast.USub),
)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(tree: ast.expr) -> list[int | float]:
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [node.value for node in constants]  # type: ignore[misc]


def _powers(tree: ast.AST) -> float:
    """Return the largest product of nested exponents; infinite if an exponent holds a power."""
    most = max(map(_powers, ast.iter_child_nodes(tree)), default=1.0)
    if not (isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow)):
        return most
    if any(isinstance(node, ast.Pow) for node in ast.walk(tree.right)):
        return math.inf
    return most * max(2.0, math.prod(max(1.0, abs(number)) for number in _numbers(tree.right)))


def _value(tree: ast.expr) -> Fraction:
    if isinstance(tree, ast.Constant):
        return Fraction(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.UnaryOp):
        return -_value(tree.operand) if isinstance(tree.op, ast.USub) else _value(tree.operand)
    assert isinstance(tree, ast.BinOp)
    left, right = _value(tree.left), _value(tree.right)
    if isinstance(tree.op, ast.Add):
        return left + right
    if isinstance(tree.op, ast.Sub):
        return left - right
    return left * right if isinstance(tree.op, ast.Mult) else left / right
