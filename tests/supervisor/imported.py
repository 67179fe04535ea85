"""A module that is imported before processes are forked."""

import os
import signal
import sys
import time

import numpy.random  # noqa: F401

MADE_BY = os.getpid()
main = sys.modules["__main__"]
if "CHILD_FAILS" in os.environ:
    main.torch_environment.roam = None  # type: ignore[attr-defined]
if "FORKER_DIES" in os.environ:
    forked = main._forked  # type: ignore[attr-defined]

    def dies() -> int | None:
        """Fork, and die before the answer."""
        process: int | None = forked()
        if process is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return process

    main._forked = dies  # type: ignore[attr-defined]
time.sleep(float(os.environ.get("IMPORT_S", "0")))
if "IMPORT_FAILS" in os.environ:
    raise ImportError("a broken library")
