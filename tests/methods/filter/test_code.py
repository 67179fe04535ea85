"""The scorer of programs: what it asks for, what it makes of the results, and in a real jail."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from banyan.programs.run import Outcome, Result, Run
from methods.filter.code import Code
from services.verifier.jail.chosen import ChosenJail
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring

SUM = {"call": "total", "args": [[1, 2]], "result": 3}
EMPTY = {"call": "total", "args": [[]], "result": 0}
ECHO = {"stdin": "a\n", "stdout": "a"}
ROW = {"tests": [SUM, EMPTY]}
RIGHT = "Sure:\n```python\ndef total(xs):\n    return sum(xs)\n```\n"


def examined(
    scorer: Code, completion: str, row: dict[str, Any], results: Sequence[Result]
) -> tuple[Scored | Unscorable, list[Run]]:
    """Return the score and the runs, with made-up results."""
    examination = scorer.examine(completion, row)
    runs: list[Run] = []
    try:
        runs.append(next(examination))
        for result in results:
            runs.append(examination.send(result))
    except StopIteration as end:
        return end.value, runs
    raise AssertionError("it asks for more runs")


def printed(value: object) -> Result:
    return Result(Outcome.DONE, stdout=b"noise\n\n" + json.dumps(value).encode() + b"\n")


def test_a_run_holds_the_program_and_the_arguments_and_not_what_is_expected() -> None:
    row = {"tests": [{"call": "f", "args": ["in"], "result": "EXPECTED"}, ECHO | {"stdout": "OUT"}]}
    _, runs = examined(Code(), "```\nf = str\n```", row, [printed("EXPECTED"), printed("x")])
    assert "'[\"in\"]'" in runs[0].program and runs[0].program.startswith("f = str\n")
    assert runs[1].stdin == b"a\n"
    for run in runs:
        assert "EXPECTED" not in repr(run) and "OUT" not in repr(run)


def test_all_tests_or_nothing_and_the_first_failure_ends_it() -> None:
    both, runs = examined(Code(), RIGHT, ROW, [printed(3), printed(0)])
    assert both == Scored(1.0, {"test_0": 1.0, "test_1": 1.0, "passed": 1.0})
    one, runs = examined(Code(), RIGHT, ROW, [printed(4)])
    assert one == Scored(0.0, {"test_0": 0.0, "passed": 0.0}) and len(runs) == 1


def test_a_share_counts_every_test_and_names_causes() -> None:
    results = [Result(Outcome.CPU, -9), printed(0), Result(Outcome.EXITED, 1)]
    row = {"tests": [SUM, EMPTY, SUM]}
    scored, _ = examined(Code(partial=True), RIGHT, row, results)
    parts = {"test_0": 0.0, "test_1": 1.0, "test_2": 0.0, "passed": 1 / 3}
    assert scored == Scored(1 / 3, parts | {"cpu": 1.0, "exited": 1.0})


@pytest.mark.parametrize("outcome", Outcome)
def test_only_a_fault_of_the_system_leaves_no_score(outcome: Outcome) -> None:
    scored, _ = examined(Code(), RIGHT, ROW, [Result(outcome, 1, b"3\n")] * 2)
    if outcome in (Outcome.WALL, Outcome.LOST):
        assert scored == Unscorable(f"INFRASTRUCTURE: a program's run ended {outcome}")
    else:
        assert isinstance(scored, Scored) and scored.value == 0.0
        assert outcome is Outcome.DONE or scored.parts[outcome.part] == 1.0


def test_causes_have_the_names_that_other_scorers_give_them_too() -> None:
    causes = [outcome.part for outcome in Outcome if outcome.is_programs]
    assert causes[:6] == ["done", "exited", "crashed", "cpu", "memory", "output"]
    assert causes[6:] == ["disk", "processes", "waited"]


@pytest.mark.parametrize("answer", [b"3", b"noise\n3", b"3\n\n", b"3.0"])
def test_the_last_line_is_the_result(answer: bytes) -> None:
    scored, _ = examined(Code(), RIGHT, {"tests": [SUM]}, [Result(Outcome.DONE, stdout=answer)])
    assert isinstance(scored, Scored) and scored.value == 1.0


@pytest.mark.parametrize("answer", [b"", b"3\nnoise", b"true", b"NaN", b"[3]", b"\xff", b"33"])
def test_anything_else_is_wrong(answer: bytes) -> None:
    scored, _ = examined(Code(), RIGHT, {"tests": [SUM]}, [Result(Outcome.DONE, stdout=answer)])
    assert isinstance(scored, Scored) and scored.value == 0.0


def test_a_completion_without_a_program_scores_nothing() -> None:
    scored, runs = examined(Code(), "I cannot.", ROW, [])
    assert scored == Scored(0.0, {"passed": 0.0, "no_program": 1.0}) and not runs


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "the row's tests must be a list of 1 to 256 tests"),
        ({"tests": []}, "the row's tests must be a list"),
        ({"tests": [SUM] * 257}, "the row's tests must be a list"),
        ({"tests": [{"call": "f"}]}, "a test is"),
        ({"tests": [SUM | {"more": 1}]}, "a test is"),
        ({"tests": ["assert f(1)"]}, "a test is"),
        ({"tests": [SUM | {"call": "f(); g"}]}, "which is no name"),
        ({"tests": [SUM | {"call": "import"}]}, "which is no name"),
    ],
)
def test_a_row_that_cannot_be_tested_is_named(row: dict[str, Any], reason: str) -> None:
    scored, runs = examined(Code(), RIGHT, row, [])
    assert isinstance(scored, Unscorable) and reason in scored.reason and not runs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seconds": 0}, "seconds must lie in 0.01..600, got 0"),
        ({"seconds": float("nan")}, "seconds must be a finite number"),
        ({"memory_mb": 1.5}, "memory_mb must be a whole number"),
        ({"tolerance": 1}, "tolerance must lie in 0..1, got 1"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Code(**settings)


@pytest_asyncio.fixture
async def scoring(tmp_path: Path) -> AsyncIterator[Scoring]:
    """Scores with the jail of this machine."""
    scoring = Scoring(Pool(Limits()), ChosenJail(tmp_path))
    yield scoring
    await scoring.close()


FORGERIES = [
    "import os\nos.write(1, b'\\n3\\n')\nos._exit(0)",
    "def total(xs):\n    import gc\n    return [o for o in gc.get_objects() if o == 3][:1] or 9",
    "import sys, json\njson.dumps = lambda v: '3'\ntotal = len",
    "def total(xs):\n    class E(int):\n        __eq__ = lambda s, o: True\n    return E(9)",
    "def total(xs):\n    raise SystemExit(0)",
    "def total(xs):\n    while True: pass",
    "def total(xs):\n    return bytearray(1 << 40)",
    "def total(xs):\n    import time; time.sleep(99)",
    "def total(xs):\n    print('x' * 10_000_000)",
    "def total(xs):\n    import os\n    while True: os.fork()",
    "def total(xs):\n    import ctypes; ctypes.string_at(0)",
    "def total(xs):\n    return total(xs)",
    "def total(xs):\n    return float('nan')",
    "def total(xs):\n    return 10 ** 5000",
    "\0",
    "def total(xs): return \ud800",
    "(" * 100_000,
]


@pytest.mark.parametrize("program", FORGERIES)
async def test_no_program_earns_more_than_a_wrong_one_or_leaves_its_group(
    scoring: Scoring, program: str
) -> None:
    """The row has two tests with results that no constant has."""
    spec = ScorerSpec("code", {"seconds": 0.3, "memory_mb": 64})
    row = {"tests": [SUM, {"call": "total", "args": [[5, 6]], "result": 11}]}
    verdict = await scoring.score(spec, f"```python\n{program}\n```", row)
    assert isinstance(verdict.outcome, Scored), verdict
    assert verdict.outcome.value == 0.0


async def test_a_right_program_earns_its_score_and_the_version_names_the_jail(
    scoring: Scoring,
) -> None:
    verdict = await scoring.score(ScorerSpec("code", {}), RIGHT, {"tests": [SUM, EMPTY]})
    assert verdict.outcome == Scored(1.0, {"test_0": 1.0, "test_1": 1.0, "passed": 1.0})
    assert verdict.version.startswith("2 in ") and "seccomp" in verdict.version
    prime = "```python\nn = int(input())\nprint(all(n % d for d in range(2, n)))\n```"
    tests = [{"stdin": f"{n}\n", "stdout": str(n in (2, 3, 5, 7))} for n in range(2, 10)]
    verdict = await scoring.score(ScorerSpec("code", {}), prime, {"tests": tests})
    assert isinstance(verdict.outcome, Scored) and verdict.outcome.value == 1.0


async def test_without_a_jail_nothing_runs() -> None:
    scoring = Scoring(Pool(Limits()))
    verdict = await scoring.score(ScorerSpec("code", {}), RIGHT, ROW)
    assert isinstance(verdict.outcome, Unscorable) and "no jail here" in verdict.outcome.reason
    await scoring.close()


async def test_where_no_back_end_is_sound_nothing_runs_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise OSError("the kernel has no Landlock")

    monkeypatch.setattr("services.verifier.jail.pool.ZygotePool.check", refuse)
    scoring = Scoring(Pool(Limits()), ChosenJail(tmp_path))
    for _ in range(2):
        verdict = await scoring.score(ScorerSpec("code", {}), RIGHT, ROW)
        assert isinstance(verdict.outcome, Unscorable)
        assert "cannot run programs that nobody trusts" in verdict.outcome.reason
        assert "no Landlock" in verdict.outcome.reason
    await scoring.close()


def test_an_unknown_back_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="required or one of namespaces, process, got 'none'"):
        ChosenJail(tmp_path, sandbox="none")
