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


def part_nan(completion, **row):
    from banyan.plugins import Scored

    return Scored(1.0, {"part": float("nan")})


def part_of_a_long_name(completion, **row):
    from banyan.plugins import Scored

    return Scored(1.0, {"p" * 2_000_000: 1.0})


def mends(completion, **row):
    from banyan.plugins import Repair, Scored

    return Scored(0.25, {}, Repair(0, row["text"] * row["times"], 1, 1))


def huge(completion, **row):
    return -1e200


def nan(completion, **row):
    return float("nan")


def text(completion, **row):
    return "1.0"


def sleeps_if_told(completion, **row):
    if completion == "sleep":
        time.sleep(3600)
    return 1.0


def prints(completion, **row):
    for stream in (sys.stdout, sys.stderr):
        stream.write('{"value": 99}' * 100_000)
    os.write(1, b"\xff" * 1_000_000)
    return 0.25


def reads(completion, **row):
    return len(Path(completion).read_bytes())


def writes(completion, **row):
    return Path(completion).write_text("x")


def leaves_file(completion, **row):
    seen = len(os.listdir("."))
    Path("mine").write_text("x")
    return seen


def connects(completion, **row):
    socket.create_connection(("127.0.0.1", int(completion)), 1).close()
    return 1.0


def environment(completion, **row):
    return float(any(name.startswith("BANYAN") or "SECRET" in name for name in os.environ))


def niceness(completion, **row):
    return os.getpriority(os.PRIO_PROCESS, 0)


def group_and_session(completion, **row):
    assert os.getpgid(0) == os.getpid()
    return os.getsid(0)  # 0 if its first process is outside of the process namespace


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


def ends(completion, transcript, **row):
    """Score the calls that succeeded, with what the function was given as parts."""
    from banyan.plugins import Scored

    ok = sum(part.observation.ok for part in transcript if part.kind == "tool")
    texts = [(part.kind, part.text, part.call) for part in transcript]
    return Scored(ok, {"right": float(texts == [tuple(text) for text in row["texts"]])})


def ends_of_all(completions, transcripts, **row):
    return [len(transcript) for transcript in transcripts]


class Turns:
    name, version, needs_transcript = "turns", "7", True

    def score(self, completion, row, transcript):
        from banyan.plugins import Scored

        return Scored(sum(part.observation.reward for part in transcript if part.observation))


turns = Turns()


async def waits(completion, answer, **row):
    import asyncio

    left = asyncio.create_task(asyncio.sleep(60))
    values = await asyncio.gather(*(asyncio.sleep(0.01, n) for n in range(int(answer))))
    assert not left.done()
    return len(values)


async def waits_for_ever(completion, **row):
    import asyncio

    await asyncio.Event().wait()


async def waits_for_all(completions, transcripts, **row):
    return [len(completion) for completion in completions]


async def waits_and_raises(completion, **row):
    raise ValueError("no")


def forgets_to_wait(completion, **row):
    return waits(completion, 1)


def forgets_to_return(completions, **row):
    return (len(completion) for completion in completions)


def yields(completion, **row):
    yield 1.0


async def yields_later(completion, **row):
    yield 1.0


def opens(completion, **row):
    return float(os.environ.get("TEST_KEY") == "open" and "OTHER_KEY" not in os.environ)


def groups(completion, **row):
    return len(os.getgroups())
