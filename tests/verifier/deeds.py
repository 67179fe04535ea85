"""A scorer that does what a completion says: each ends its score in another way."""

import ctypes
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path


def deed(completion, **row):
    """Do what the completion names; the next best answer is 1, a wrong one 0."""
    return float(globals()[completion]())


def penalised(completion, **row):
    """Do the same, where a wrong answer costs one."""
    return float(globals()[completion]()) - 1.0


penalised.wrong = -1.0


def is_right():
    return 1


def is_wrong():
    return 0


def raises():
    raise ValueError("cannot be read")


def spins():
    while True:
        pass


def spins_in_a_child():
    return subprocess.run([sys.executable, "-S", "-c", "while True: pass"], check=True).returncode


def prints_endlessly():
    while True:
        print("x" * 1000)


def sleeps():
    time.sleep(3600)


def eats():
    return len(bytearray(1 << 36))


def exits():
    sys.exit(0)


def vanishes():
    os._exit(0)


def crashes():
    return ctypes.string_at(0)


def aborts():
    os.abort()


def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def forks():
    while os.fork():
        pass
    time.sleep(3600)


def forks_and_waits():
    while True:
        try:
            if not os.fork():
                time.sleep(3600)
        except OSError:
            time.sleep(3600)


def writes_endlessly():
    with Path("endless").open("wb") as file:
        while True:
            file.write(bytes(1 << 20))


def floods_its_channel():
    for handle in range(3, 64):
        try:
            if stat.S_ISFIFO(os.fstat(handle).st_mode):
                os.write(handle, b"\xff\xff\xff\x7f" * 1000)
        except OSError:
            continue
    return 1
