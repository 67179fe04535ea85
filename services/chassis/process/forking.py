"""`python -m services.chassis.process.forking MODULE…`: import modules once, then fork processes.

Each request on the socket that is its standard input becomes a process that runs a module as
`python -m` would, without importing again what this one has imported. Its parent is the launcher,
not this process, whose end is nobody's (ADR 078).
"""

import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress

from banyan.runtime import garbage, torch_environment
from services.chassis.process.parent_death import PARENT_VARIABLE, die_with

READY, BEGINS, FAILED = b"ready", b"begins", b"-1"
MOST = 1 << 17  # bytes of a request
_NAME = 15  # bytes of a name that the kernel keeps
_PR_SET_NAME = 15


def main() -> None:
    """Import the modules, and serve until the socket closes; in a forked process, run its module.

    It runs once all that served is left, so that it ends the interpreter as if it were alone.
    """
    if launcher := os.environ.pop(PARENT_VARIABLE, ""):
        die_with(int(launcher), signal.SIGKILL)  # which also ends it where it is stopped
    torch_environment.settle(os.environ)
    with garbage.paused():
        for name in sys.argv[1:]:
            importlib.import_module(name)
    with socket.socket(fileno=os.dup(0)) as requests:
        module = _serve(requests)
    if module:
        sys.argv[1:] = []
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _serve(requests: socket.socket) -> str:
    """Answer each request with the id of its process: 0 if there is none, -1 if it failed.

    The process itself says that it begins, once it has a session of its own. Return the module to
    run in a forked process, and nothing at the end of the socket.
    """
    requests.sendall(READY)
    while True:
        data, log = _received(requests)
        if not data:
            return ""
        began, begins = os.pipe()
        answered, go = os.pipe()
        process = _forked()
        if process is None:
            os.close(began)
            os.close(go)
            request = json.loads(data)
            _become(request["module"], request["environ"], log)
            with suppress(BrokenPipeError):
                os.write(begins, b"!")
            if not os.read(answered, 1):  # the launcher will never know of it
                os._exit(1)
            os.close(begins)
            os.close(answered)
            os.setsid()
            requests.sendall(BEGINS)
            return str(request["module"])
        for descriptor in (log, begins, answered):
            os.close(descriptor)
        with os.fdopen(began, "rb", 0) as pipe:
            failed = process and not pipe.read(1)
        requests.sendall(FAILED if failed else str(process).encode())
        with suppress(BrokenPipeError), os.fdopen(go, "wb", 0) as pipe:
            pipe.write(b"!")


def _received(requests: socket.socket) -> tuple[bytes, int]:
    """Return the next request and the descriptor of its log; nothing at the end of the socket."""
    data, descriptors, _, _ = socket.recv_fds(requests, MOST, 1)
    return data, descriptors[0] if descriptors else -1


def _forked() -> int | None:
    """Fork a process whose parent is the launcher. Return its id; 0 if there is no room for it.

    Return None within it.
    """
    read, write = os.pipe()
    try:
        between = os.fork()
    except OSError:
        between = -1
    if between == 0:
        _fork_and_end(write)
        os.close(read)
        os.close(write)
        return None
    os.close(write)
    with os.fdopen(read) as answer:
        process = int(answer.read() or 0)
    if between > 0:
        os.waitpid(between, 0)  # from now on the launcher is the parent
    return process


def _fork_and_end(answer: int) -> None:
    """Fork once more, write the id to `answer`, and end; return in the process forked."""
    with suppress(OSError):
        if (process := os.fork()) == 0:
            return
        os.write(answer, str(process).encode())
    os._exit(0)


def _become(module: str, environ: Mapping[str, str], log: int) -> None:
    """Take a log, an environment, a name and random numbers of one's own.

    The log comes first, as it takes what goes wrong.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    for name in [*filter(None, os.environ)]:  # one without a name can be inherited, but not set
        del os.environ[name]
    os.environ.update({name: value for name, value in environ.items() if name})
    short = ctypes.create_string_buffer(module.removeprefix("services.").encode()[:_NAME])
    ctypes.CDLL(None).prctl(_PR_SET_NAME, short, 0, 0, 0)
    with suppress(OSError):  # none of these cores is left to it: it keeps to those that are
        torch_environment.roam()  # the import of torch bound the only thread
    if "numpy.random" in sys.modules:  # all would draw the same; Python's own numbers are new
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


if __name__ == "__main__":
    main()
