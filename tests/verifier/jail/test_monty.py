"""Sessions of monty: how runs end, that states are values, and that forks do not see each other."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from banyan.errors import InvalidInput
from banyan.programs.run import Limits, Outcome
from banyan.programs.session import SessionResult
from services.verifier.jail import state as states
from services.verifier.jail.monty import MAX_STATE_BYTES, Sessions
from services.verifier.jail.turn import Turn

LIMITS = Limits(wall_s=20.0, cpu_s=0.3, memory_mb=32, output_bytes=1000)
KEY = b"key of a test"


@pytest_asyncio.fixture
async def sessions() -> AsyncIterator[Sessions]:
    """Two workers."""
    sessions = await Sessions.start(key=KEY)
    yield sessions
    await sessions.close()


async def run(
    sessions: Sessions, code: str, state: bytes | None = None, **limits: float
) -> SessionResult:
    return await sessions.run(code, state, replace(LIMITS, **limits))


ENDS = {
    "print('a')": (Outcome.DONE, b"a\n", b""),
    "raise SystemExit": (Outcome.DONE, b"", b""),
    "raise SystemExit('why')": (Outcome.EXITED, b"", b"why\n"),
    "print(1)\ndef f(): 1/0\nf()": (Outcome.EXITED, b"1\n", b"line 2, in f"),
    "this is no Python": (Outcome.EXITED, b"", b"SyntaxError"),
    "print('\ud800')": (Outcome.EXITED, b"", b"SyntaxError"),
    "import sys; print('e', file=sys.stderr)": (Outcome.DONE, b"", b"e\n"),
    "raise TimeoutError('feed time limit')": (Outcome.EXITED, b"", b"TimeoutError"),
    "def f(): f()\nf()": (Outcome.EXITED, b"", b"RecursionError"),
    "input()": (Outcome.EXITED, b"", b"NameError"),
    "import os\nos.environ": (Outcome.EXITED, b"", b"not supported"),
    "open('/etc/passwd')": (Outcome.EXITED, b"", b"PermissionError"),
    "for _ in range(2000):\n  try: open('/a')\n  except OSError: pass": (
        *(Outcome.EXITED, b""),
        b"RuntimeError",
    ),
    "[1, 2] if 1 else \\": (Outcome.EXITED, b"", b"SyntaxError"),
    "while True: pass": (Outcome.CPU, b"", b""),
    "while True:\n  try:\n    while True: pass\n  except BaseException: pass": (
        *(Outcome.CPU, b""),
        b"",
    ),
    "'a' * (1 << 30)": (Outcome.MEMORY, b"", b"memory limit"),
    "x = []\nwhile True: x.append('a' * 1000)": (Outcome.MEMORY, b"", b"memory limit"),
    "x = list(range(40_000))": (Outcome.MEMORY, b"", f"at most {MAX_STATE_BYTES}".encode()),
    "print('x' * 2000)": (Outcome.OUTPUT, b"x" * 1000, b""),
    "while True: print('x' * 99)": (Outcome.OUTPUT, b"xxx", b""),
}


@pytest.mark.parametrize("code", ENDS)
async def test_a_run_ends_as_it_ends_and_the_state_is_what_it_left(
    sessions: Sessions, code: str
) -> None:
    outcome, stdout, stderr = ENDS[code]
    before = (await run(sessions, "before = 1")).state
    result = await run(sessions, code, before)
    assert result.outcome is outcome and result.outcome.is_programs, result
    assert result.stdout.startswith(stdout) and stderr in result.stderr
    assert len(result.stdout) <= LIMITS.output_bytes >= len(result.stderr)
    if outcome not in (Outcome.DONE, Outcome.EXITED):
        assert result.state == before
    after = await run(sessions, "print(before)", result.state)
    assert after.stdout == b"1\n"


async def test_an_exception_keeps_what_was_done_before_it(sessions: Sessions) -> None:
    failed = await run(sessions, "x = 5\n1/0")
    assert (await run(sessions, "print(x)", failed.state)).stdout == b"5\n"


async def test_a_busy_machine_is_not_the_programs_doing(sessions: Sessions) -> None:
    busy = await run(sessions, "while True: pass", wall_s=0.2, cpu_s=60.0)
    assert busy.outcome is Outcome.WALL and not busy.outcome.is_programs
    assert 0 < busy.cpu_s <= 1 and busy.wall_s >= 0.2


async def test_two_runs_from_one_state_do_not_see_each_other(sessions: Sessions) -> None:
    root = await run(sessions, "import random\nx = [1]\ny = {'x': x}")
    codes = [f"x.append({number})\nprint(x, y['x'] is x, random.random())" for number in (2, 3)]
    left, right, again = await asyncio.gather(
        *(run(sessions, code, root.state) for code in (*codes, codes[0]))
    )
    assert left.stdout.startswith(b"[1, 2] True") and right.stdout.startswith(b"[1, 3] True")
    assert left == replace(again, cpu_s=left.cpu_s, wall_s=left.wall_s)
    assert left.state != right.state


async def test_clock_and_random_numbers_are_those_of_the_seed(sessions: Sessions) -> None:
    code = "import random, time, datetime\nt = time.time(), datetime.datetime.now()\n"
    code += "time.sleep(1000)\nr = random.random()\nprint(r, t)"
    first, second, other = [await sessions.run(code, seed=seed) for seed in (1, 1, 2)]
    assert first.state == second.state != other.state
    assert first.stdout == second.stdout != other.stdout


async def test_limits_are_those_of_the_run_and_not_those_of_the_state(sessions: Sessions) -> None:
    wide = await run(sessions, "x = 1", memory_mb=64, wall_s=9.0)
    assert wide.state == (await run(sessions, "x = 1")).state
    bomb = "y = len('a' * (40 << 20))"
    assert (await run(sessions, bomb, wide.state)).outcome is Outcome.MEMORY
    assert (await run(sessions, bomb, wide.state, memory_mb=64)).outcome is Outcome.DONE
    assert (await run(sessions, "1", wide.state, memory_mb=0)).outcome is Outcome.MEMORY


async def test_a_state_that_others_made_is_refused(sessions: Sessions) -> None:
    state = (await run(sessions, "x = 1")).state
    assert state is not None
    changed = bytes([*state[:-1], state[-1] ^ 1])
    longer = state[:20] + struct.pack("<I", 9) + state[24:]
    for bad in (changed, longer, state[:-1], b"x", b"BMS1" + bytes(40)):
        with pytest.raises(InvalidInput, match="no state of these sessions"):
            await run(sessions, "print(x)", bad)
    other = await Sessions.start(width=1)
    with pytest.raises(InvalidInput, match="no state of these sessions"):
        await run(other, "print(x)", state)
    await other.close()


async def test_a_state_of_another_version_is_refused(sessions: Sessions) -> None:
    state = (await run(sessions, "x = 1")).state
    assert state is not None
    body = state[24:].replace(b"MONTY\x00\x0e", b"MONTY\x00\x7f", 1)
    (start,) = struct.unpack("<I", state[20:24])
    forged = state[:4] + states._seal(body, start, KEY) + state[20:24] + body
    with pytest.raises(InvalidInput, match="another version"):
        await run(sessions, "print(x)", forged)


@pytest.mark.parametrize("mark", ["gsources\\xa1", "gtracker\\xa4flimits\\xa7"])
async def test_no_program_says_where_a_part_of_its_state_is(sessions: Sessions, mark: str) -> None:
    before = (await run(sessions, "x = 1")).state
    spoof = await run(sessions, f"x = b'{mark}'", before)
    assert (spoof.outcome, spoof.state) == (Outcome.EXITED, before)
    assert b"not once" in spoof.stderr
    assert (await run(sessions, f"x = '{mark}'", before)).outcome is Outcome.DONE


SNIPPETS = st.sampled_from(
    [
        *("x = [1]", "x.append(len(x))", "y = x", "y = {str(v): v for v in x}", "del x", "1/0"),
        *("import random", "x = random.random()", "import math, re, json", "z = math.pi"),
        *("def f(a):\n  return [a, len(a)]", "x = f(x)", "s = {str(v) for v in range(9)}"),
        *("class A:\n  n = 3\na = A()", "print(x, y, s)", "b = b'abc' * 3", "g = lambda v: v"),
        *("print(hash('a'), id(x))", "exec('def h(): return 1')", "x = [x, x]", "print('é')"),
    ]
)
TREES = st.lists(st.tuples(st.integers(0, 1000), SNIPPETS), min_size=1, max_size=12)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tree=TREES)
def test_a_tree_has_the_states_of_each_path_run_from_the_start(
    tree: list[tuple[int, str]],
) -> None:
    asyncio.run(_compare(tree))


async def _compare(tree: list[tuple[int, str]]) -> None:
    async with AsyncExitStack() as stack:
        first, second = await Sessions.start(key=KEY), await Sessions.start(key=KEY, width=1)
        stack.push_async_callback(first.close)
        stack.push_async_callback(second.close)
        states: list[bytes | None] = [None]
        paths: list[list[str]] = [[]]
        for parent, code in tree:
            parent %= len(states)
            states.append((await run(first, code, states[parent])).state)
            paths.append([*paths[parent], code])
        for state, path in zip(states, paths, strict=True):
            alone = None
            for code in path:
                alone = (await run(second, code, alone)).state
            assert alone == state


async def test_runs_beside_each_other_end_in_their_turn(sessions: Sessions) -> None:
    runs = [run(sessions, f"print({number})") for number in range(64)]
    results = await asyncio.gather(*runs)
    assert [result.stdout for result in results] == [b"%d\n" % number for number in range(64)]


async def test_a_run_that_was_ended_leaves_the_state_whoever_was_first(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may have answered just before it is ended."""
    before = (await run(sessions, "x = 1")).state
    monkeypatch.setattr(
        "services.verifier.jail.monty.Turn.end", lambda turn, cause: setattr(turn, "cause", cause)
    )
    result = await run(sessions, "x = 2\nprint('x' * 2000)", before)
    assert (result.outcome, result.state) == (Outcome.OUTPUT, before)


def test_the_first_limit_that_ended_a_run_is_its_cause() -> None:
    turn = Turn(LIMITS)
    turn.write("stdout", "x" * 2000)
    turn.end(Outcome.CPU)
    assert turn.cause is Outcome.OUTPUT
