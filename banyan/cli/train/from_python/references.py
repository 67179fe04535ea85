"""Names that a function or class of a user takes from the module around it. Pure."""

import ast
import builtins
import dis
import inspect
import linecache
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")


def source_of(value: Any) -> str:
    """Return the source of a function or class, without the indent around it.

    Raises OSError or TypeError where Python does not know it.
    """
    if inspect.isclass(value):
        found = _source_of_class(value)
        if found:
            return found
    return textwrap.dedent(inspect.getsource(value))


def _source_of_class(value: type) -> str:
    """Return the source of a class by that of its methods; empty if that is unknown.

    Python looks for a class in its module's file, and a notebook's cell has none.
    """
    for member in vars(value).values():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if inspect.isfunction(function):
            lines = linecache.getlines(function.__code__.co_filename)
            for node in ast.walk(ast.parse("".join(lines))):
                if not isinstance(node, ast.ClassDef) or node.name != value.__name__:
                    continue
                if _spans(node, function.__code__.co_firstlineno):
                    return textwrap.dedent("".join(lines[_first(node) - 1 : node.end_lineno]))
    return ""


def _first(node: ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _spans(node: ast.ClassDef, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def of_function(function: FunctionType) -> dict[str, Any]:
    """Return the values by name that a function takes from outside itself.

    These are globals that its code loads, variables of functions around it, and the names in its
    decorators and defaults. Builtins and names without a value are left out.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {name: cell.cell_contents for name, cell in cells if _filled(cell)}
    known = function.__globals__
    names = [*_loaded(function.__code__), *_of_head(source_of(function))]
    return {**{name: known[name] for name in names if _is_global(name, known)}, **found}


def of_class(value: type) -> dict[str, Any]:
    """Return the values by name that a class takes from the module around it."""
    found: dict[str, Any] = {}
    for member in vars(value).values():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        own = f"{value.__qualname__}."
        if inspect.isfunction(function) and function.__qualname__.startswith(own):
            known = function.__globals__
            names = [*_loaded(function.__code__), *_names(ast.parse(source_of(value)))]
            found |= {name: known[name] for name in names if _is_global(name, known)}
    return {name: one for name, one in found.items() if one is not value}


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _is_global(name: str, known: dict[str, Any]) -> bool:
    return name in known and not (hasattr(builtins, name) and known[name] is vars(builtins)[name])


def _loaded(code: CodeType) -> Iterator[str]:
    """Yield the globals that code loads, functions and comprehensions inside it included."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL:
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loaded(constant)


def _of_head(source: str) -> Iterator[str]:
    """Yield the names in decorators and defaults of a function."""
    statement = ast.parse(source).body[0]
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = statement.args
        for part in [*statement.decorator_list, *arguments.defaults, *arguments.kw_defaults]:
            if part is not None:
                yield from _names(part)


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
