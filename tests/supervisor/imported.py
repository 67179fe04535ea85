"""A module that is imported before processes are forked."""

import os
import time

import numpy.random  # noqa: F401

MADE_BY = os.getpid()
time.sleep(float(os.environ.get("IMPORT_S", "0")))
if "IMPORT_FAILS" in os.environ:
    raise ImportError("a broken library")
