"""Modules of the standard library that a zygote imports once for all runs."""

import contextlib
import importlib
import sys

_COMMON = (
    *("math", "cmath", "random", "statistics", "decimal", "fractions", "operator", "numbers"),
    *("collections", "heapq", "bisect", "itertools", "functools", "array", "copy", "enum"),
    *("re", "string", "json", "textwrap", "datetime", "time", "calendar", "typing", "dataclasses"),
    *("io", "sys", "os", "types", "abc", "traceback", "linecache", "encodings.utf_8"),
)


def preload() -> None:
    """Import them, and find nothing on the path of ours from now on."""
    for name in _COMMON:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.path[:] = [path for path in sys.path if path.startswith(sys.base_prefix)]
