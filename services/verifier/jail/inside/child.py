"""The step from the zygote to a run, in the forked process."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from services.verifier.jail.inside import program

_MOST_HANDLES = 1024


def fork(streams: Sequence[int], confine: Callable[[], None], kept: Iterable[int]) -> int:
    """Return the process id of a confined run.

    streams: standard input, output and error of the run.
    confine: confines the new process, or raises.
    kept: descriptors that `confine` needs and closes.

    Raises OSError if the process could not be confined; then no foreign code has run.
    """
    confined, inner = os.pipe()
    process = os.fork()
    if process == 0:
        _run(streams, confine, kept, inner)
    os.close(inner)
    try:
        word = os.read(confined, 200)
    finally:
        os.close(confined)
    if word == _CONFINED:
        return process
    os.waitpid(process, 0)
    raise OSError(f"a run could not be confined: {word.decode(errors='replace') or 'it ended'}")


_CONFINED = b"\n"


def _run(
    streams: Sequence[int], confine: Callable[[], None], kept: Iterable[int], word: int
) -> NoReturn:
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        _close_all_but([word, *kept])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU):
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        confine()
        os.write(word, _CONFINED)
        os.close(word)
        program.run()
    except BaseException as error:  # in any case: the code that follows is the zygote's
        with contextlib.suppress(OSError):
            os.write(word, f"{type(error).__name__}: {error}".encode()[:200])
    finally:
        os._exit(1)


def _close_all_but(kept: Sequence[int]) -> None:
    first = 3
    for handle in sorted(kept):
        os.closerange(first, handle)
        first = handle + 1
    os.closerange(first, _MOST_HANDLES)
