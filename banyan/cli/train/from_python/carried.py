"""A reward function as a module that a verifier's process can import.

A function of a module is imported from there. One of a script's `__main__` or of a notebook's cell
cannot be: importing a script would run it once more, and a cell is no file. Its source is copied
with what it uses: functions, classes, imports, and values that can be written down. What cannot be
copied is an error that names it.
"""

import ast
import inspect
import re
import sys
from pathlib import Path, PurePath
from types import FunctionType, ModuleType
from typing import Any

from banyan.cli.train.from_python import references
from banyan.digest import blake
from banyan.errors import InvalidInput

_LARGEST = 1 << 20  # characters of a copied value
_HEAD = (
    "# A copy of {name}, made by banyan.train so that verifiers can import it.\n"
    "# Change the function where it is, not here.\n"
    "from __future__ import annotations\n\n"
)
_INSTALLED = ("site-packages", "dist-packages")


def module_of(value: Any) -> tuple[str, str] | None:
    """Return module and name by which a function or class can be imported elsewhere, or None.

    Methods that a module gives as functions count, such as those of `random`.
    """
    bound = type(getattr(value, "__self__", None)).__module__
    module = getattr(value, "__module__", "") or bound
    name = getattr(value, "__name__", "")
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if loaded is None or not name or module in ("__main__", "__mp_main__"):
        return None
    if file is None and module not in sys.stdlib_module_names:
        return None
    found = getattr(loaded, name, None)
    same = found == value if inspect.isroutine(value) else found is value
    return (module, name) if same else None


def folder_of(module: str) -> Path | None:
    """Return the folder from which a user's module is imported; None for an installed one."""
    top = sys.modules.get(module.partition(".")[0])
    file = getattr(sys.modules.get(module), "__file__", None)
    if top is None or file is None or any(part in _INSTALLED for part in Path(file).parts):
        return None
    path = Path(file).resolve()
    levels = module.count(".") + (path.name == "__init__.py")
    folder = path.parents[levels]
    return None if folder == Path(sys.base_prefix) or _is_standard(path) else folder


def _is_standard(path: Path) -> bool:
    return path.is_relative_to(Path(ast.__file__).resolve().parent)


class Copy:
    """A module under construction: the source of a function and of all that it uses.

    folders: folders of the user's modules that it imports
    """

    def __init__(self, function: FunctionType) -> None:
        self.folders: list[Path] = []
        self._whole = function.__name__
        self._imports: list[str] = []
        self._parts: list[str] = []
        self._done: dict[str, Any] = {}
        self._add(function.__name__, function, "")

    @property
    def source(self) -> str:
        """Source of the module."""
        imports = "".join(f"{line}\n" for line in self._imports)
        return _HEAD.format(name=self._whole) + imports + "\n\n" + "\n\n\n".join(self._parts) + "\n"

    @property
    def module(self) -> str:
        """Name of the module, which is that of its content."""
        return f"banyan_reward_{blake(self.source.encode()).hex()[:12]}"

    def _add(self, name: str, value: Any, user: str) -> None:
        """Add what gives a name its value. user: the function that uses it."""
        if name in self._done:
            if self._done[name] is not value:
                raise InvalidInput(
                    f"reward {self._whole!r} uses two different things named {name!r}; rename one"
                )
            return
        self._done[name] = value
        if inspect.ismodule(value):
            self._import_module(name, value, user)
        elif place := module_of(value):
            self._import_from(name, *place)
        elif inspect.isclass(value):
            self._copy(name, value, value.__name__, references.of_class)
        elif inspect.isfunction(inner := _innermost(value)):
            self._copy(name, inner, inner.__name__, references.of_function)
        else:
            self._parts.append(f"{name} = {self._written(name, value, user)}")

    def _import_module(self, name: str, module: ModuleType, user: str) -> None:
        if module.__name__ in ("__main__", "__mp_main__"):
            raise self._refused(name, module, user)
        as_name = "" if name == module.__name__ else f" as {name}"
        self._imports.append(f"import {module.__name__}{as_name}")
        self._note_folder(module.__name__)

    def _import_from(self, name: str, module: str, qualified: str) -> None:
        as_name = "" if name == qualified else f" as {name}"
        self._imports.append(f"from {module} import {qualified}{as_name}")
        self._note_folder(module)

    def _note_folder(self, module: str) -> None:
        folder = folder_of(module)
        if folder is not None and folder not in self.folders:
            self.folders.append(folder)

    def _copy(self, name: str, value: Any, own_name: str, used: Any) -> None:
        source = _source(value, self._whole)
        for needed, needed_value in used(value).items():
            if needed_value is not value:
                self._add(needed, needed_value, own_name)
        self._parts.append(source.rstrip())
        if own_name != name:
            self._parts.append(f"{name} = {own_name}")

    def _written(self, name: str, value: Any, user: str) -> str:
        """Return a value as an expression. Raises InvalidInput if it has none."""
        if isinstance(value, re.Pattern):
            self._add("re", re, user)
            return f"re.compile({value.pattern!r}, {value.flags})"
        if isinstance(value, PurePath):
            self._add("Path", Path, user)
            return f"Path({str(value)!r})"
        text = repr(value)
        if len(text) > _LARGEST:
            raise InvalidInput(
                f"reward {self._whole!r}: {name!r} has {len(text):,} characters, and at most"
                f" {_LARGEST:,} are copied to the verifier: read it from a file in a module, or put"
                " what a row needs into the row"
            )
        try:
            if ast.literal_eval(text) == value:
                return text
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
        raise self._refused(name, value, user)

    def _refused(self, name: str, value: Any, user: str) -> InvalidInput:
        kind = type(value).__name__
        return InvalidInput(
            f"reward {self._whole!r}: {user or self._whole} uses {name!r}, a {kind}, which a"
            " verifier's process cannot get: make it inside the function, or put the function into"
            " a file of its own, such as rewards.py, and pass rewards.NAME"
        )


def _innermost(value: Any) -> Any:
    """Return the function that decorators such as functools.cache are wrapped around."""
    return inspect.unwrap(value) if callable(value) else value


def _source(value: Any, whole: str) -> str:
    try:
        source = references.source_of(value)
        statement = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        raise InvalidInput(
            f"reward {whole!r}: Python does not know the source of {value.__name__!r}, as of what"
            " is typed at a prompt or made by exec: put it into a file of its own, such as"
            " rewards.py, and pass rewards.NAME"
        ) from None
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        raise InvalidInput(
            f"reward {whole!r}: a lambda has no source of its own; give it a name with `def`"
        )
    return source
