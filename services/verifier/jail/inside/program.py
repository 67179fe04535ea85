"""The run itself: the program is read from standard input and executed as a main module."""

import os
import struct
import sys
import traceback
import types
from typing import NoReturn

HEADER = struct.Struct("<I")  # length of the program, before it on standard input
MEMORY_STATUS = 247
_OURS = ("services", "banyan")


def run() -> NoReturn:
    """Execute the program and end the process with its status."""
    status = 1
    try:
        status = _execute(_source())
    finally:
        os._exit(status)


def _execute(source: str) -> int:
    main = types.ModuleType("__main__")
    _forget_ours()
    sys.modules["__main__"] = main
    sys.argv = ["program"]
    # Streams of its own: the zygote's may be closed, and hold what it printed.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    try:
        exec(compile(source, "<program>", "exec", dont_inherit=True), main.__dict__)
        status = 0
    except SystemExit as end:
        status = _exit_status(end.code)
    except MemoryError:
        return MEMORY_STATUS
    except BaseException as error:  # the program may raise anything
        trace = error.__traceback__
        own = trace.tb_next if trace is not None else None  # without our frame
        traceback.print_exception(type(error), error, own)
        status = 1
    return status if _flushed() else 1


def _source() -> str:
    (size,) = HEADER.unpack(_exactly(HEADER.size))
    return _exactly(size).decode()


def _exactly(size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _flushed() -> bool:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return False
    return True


def _forget_ours() -> None:
    """Remove our modules, so that a program's names are its own."""
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]
