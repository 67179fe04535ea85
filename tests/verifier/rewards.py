"""Reward functions that misbehave in ways that must not hurt others."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

calls = []


def exact(completion, answer, **row):
    return float(completion.strip() == str(answer))


def count(completion, **row):
    calls.append(completion)
    return len(calls)


def raises(completion, **row):
    raise ValueError(f"cannot read {completion}")


def half(completion, **row):
    raise ValueError("\ud83d")


def unsayable(completion, **row):
    class Hostile(Exception):
        def __str__(self):
            sys.exit(3)

    raise Hostile


def _forged(body):
    """Write the answer itself, as a completion that took over its score."""
    import stat

    pipe = next(n for n in range(3, 64) if _is(n, stat.S_ISFIFO))
    os.write(pipe, len(body).to_bytes(4, "little") + body)
    os._exit(0)


def _is(handle, kind):
    try:
        return kind(os.fstat(handle).st_mode)
    except OSError:
        return False


def forged_nan(completion, **row):
    _forged(b'{"value": NaN, "parts": {}}')


def forged_infinity(completion, **row):
    _forged(b'{"value": 1e999, "parts": {}}')


def forged_list(completion, **row):
    _forged(b"[1]")


def many_parts(completion, **row):
    from banyan.plugins import Scored

    return Scored(1.0, {f"part {number}": 1.0 for number in range(60_000)})


def mends(completion, **row):
    from banyan.plugins import Repair, Scored

    return Scored(0.25, {}, Repair(0, row["text"] * row["times"], 1, 1))


def huge(completion, **row):
    return -1e200


def nan(completion, **row):
    return float("nan")


def text(completion, **row):
    return "1.0"


def forever(completion, **row):
    while True:
        pass


def sleeps(completion, **row):
    time.sleep(3600)


def sleeps_if_told(completion, **row):
    if completion == "sleep":
        time.sleep(3600)
    return 1.0


def memory(completion, **row):
    return len(bytearray(1 << 36))


def leaves(completion, **row):
    sys.exit(0)


def vanishes(completion, **row):
    os._exit(0)


def crashes(completion, **row):
    os.kill(os.getpid(), 11)


def prints(completion, **row):
    for stream in (sys.stdout, sys.stderr):
        stream.write('{"value": 99}' * 100_000)
    os.write(1, b"\xff" * 1_000_000)
    return 0.25


def floods_channel(completion, **row):
    for handle in range(3, 64):
        try:
            os.write(handle, b"\xff\xff\xff\x7f" * 1000)
        except OSError:
            continue
    return 1.0


def reads(completion, **row):
    return len(Path(completion).read_bytes())


def writes(completion, **row):
    return Path(completion).write_text("x")


def big_file(completion, **row):
    with open("big", "wb") as file:
        for _ in range(1000):
            file.write(bytes(1 << 20))
    return 1.0


def leaves_file(completion, **row):
    seen = len(os.listdir("."))
    Path("mine").write_text("x")
    return seen


def connects(completion, **row):
    socket.create_connection(("127.0.0.1", int(completion)), 1).close()
    return 1.0


def environment(completion, **row):
    return float(any(name.startswith("BANYAN") or "SECRET" in name for name in os.environ))


def user(completion, **row):
    return os.getuid()


def user_group(completion, **row):
    assert os.getgroups() == [] and os.getgid() == os.getuid()
    return os.getuid()


def starts_process(completion, **row):
    return int(subprocess.run(["/bin/echo", "5"], capture_output=True, check=True).stdout)


def fork_bomb(completion, **row):
    made = 0
    while True:
        try:
            if os.fork() == 0:
                time.sleep(3600)
            made += 1
        except OSError:
            return made


def daemon(completion, **row):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/sleep", ["/bin/sleep", completion])
        os._exit(0)
    time.sleep(0.2)
    return 1.0


def kills(completion, **row):
    os.kill(int(completion), 9)
    return 1.0


def prints_much(completion, **row):
    print(completion)
    print("x" * 10_000, file=sys.stderr, flush=True)
    return 1.0


def prints_in_every_way(completion, **row):
    sys.stdout.buffer.write(b"bytes ")
    sys.stdout.reconfigure(line_buffering=True)
    print("text", sys.stdout.encoding, end=" ")
    sys.stderr.close()
    os.write(sys.stdout.fileno(), b"nowhere")
    return 1.0
