"""The second wall around an interpreter of a language without system calls: no files, no network.

Its own rules are the first. This process confines itself, then becomes the interpreter.
"""

import os
import resource
import shlex

from services.verifier.jail import allow_list, interpreter
from services.verifier.jail.inside.bare import die_with
from services.verifier.sandbox.confinement import kernel, landlock, priority, seccomp

RULES = "landlock, seccomp"


def main(parent: int, binary: str, arguments: list[str]) -> None:
    """Become the binary, with its libraries readable and an empty environment.

    parent: process with which it ends.
    """
    # By itself it notices that end only while it waits for work.
    die_with(parent)
    os.nice(priority.YIELDING)  # its session is that of the verifier
    confine([binary, *interpreter.LIBRARIES, "/etc/ld.so.cache"])
    os.execve(binary, [binary, *arguments], {})


def confine(readable: list[str]) -> None:
    """Give up all files but these, the network, all rights. Raises OSError without Landlock."""
    os.chdir("/")
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE):
        resource.setrlimit(limit, (0, 0))
    reading = landlock.reading(readable, [], readable[0])
    if reading is None:
        raise OSError("the kernel has no Landlock")
    landlock.restrict(reading)
    os.close(reading)
    landlock.restrict_writing(("/dev/null",), network=False)
    kernel.drop_capabilities()
    # With processes, as one call of execve must pass; what it may execute is bounded above.
    filtered = allow_list.program(kernel.MACHINE, processes=True)
    seccomp.install(allow_list.of_process(filtered, os.getpid()))


def command(python: str, root: str, binary: str) -> str:
    """Return a shell script that starts `main` below this process, with its arguments."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        f" from {__name__} import main; main(int(sys.argv[2]), sys.argv[3], sys.argv[4:])"
    )
    words = (python, "-I", "-S", "-B", "-c", code, root, str(os.getpid()), binary)
    return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
