"""code: a program that passes the tests of its row, run in a jail.

The jail gets the program and a test's input alone; results are compared here, with what the row
expects. So no program can learn or forge what is expected of it. A test that the program ends by
its own doing fails; the cause is a part with the number of such tests.
"""

import json
import keyword
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from banyan.plugins import Row, Scored, Unscorable, checks
from banyan.programs import fenced, same
from banyan.programs.run import Limits, Outcome, Result, Run

_LANGUAGES = ("python", "py", "python3", "")
_MOST_TESTS = 256
_MOST_SECONDS = 600
_PARTS = 48  # tests with a part of their own
_CALL = """
import json as __json
print("\\n" + __json.dumps({name}(*__json.loads({arguments!r}))))
"""


@dataclass(slots=True)
class Code:
    """Share of the tests that pass, or 1 only for all of them.

    A test is `{"stdin": text, "stdout": text}`, or `{"call": name, "args": [...], "result": value}`
    with JSON values. The program is the last fenced block of Python in the completion.
    """

    tests: str = "tests"
    """Field of the row with its list of tests."""
    partial: bool = False
    """Score the share of passed tests. Without it a program stops at its first failure, and scores
    0."""
    seconds: float = 4.0
    """Processor time of one test."""
    memory_mb: int = 256
    """Memory of one test."""
    tolerance: float = 1e-9
    """Relative and absolute tolerance of numbers with a fraction in results."""

    name: str = field(default="code", init=False)
    version: str = field(default="2", init=False)

    def __post_init__(self) -> None:
        checks.whole(self, ("memory_mb",), 8, 1 << 16)
        checks.finite(self, ("seconds", "tolerance"))
        if not 0.01 <= self.seconds <= _MOST_SECONDS:
            raise ValueError(f"seconds must lie in 0.01..{_MOST_SECONDS}, got {self.seconds}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must lie in 0..1, got {self.tolerance}")

    def examine(self, completion: str, row: Row) -> Generator[Run, Result, Scored | Unscorable]:
        """Yield the runs of the tests; return the score of their results."""
        try:
            tests = [_test(test) for test in _listed(row, self.tests)]
        except ValueError as error:
            return Unscorable(f"EXCEPTION: {error}")
        program = fenced.last(completion, _LANGUAGES)
        if program is None:
            return Scored(0.0, {"passed": 0.0, "no_program": 1.0})
        passed: list[bool] = []
        causes: Counter[str] = Counter()
        for test in tests:
            result = yield Run(program + test.tail, test.stdin, self._limits())
            if not result.outcome.is_programs:
                return Unscorable(f"INFRASTRUCTURE: a program's run ended {result.outcome}")
            passed.append(result.outcome is Outcome.DONE and test.holds(result, self.tolerance))
            if result.outcome is not Outcome.DONE:
                causes[result.outcome.part] += 1
            if not passed[-1] and not self.partial:
                break
        share = sum(passed) / len(tests)
        parts = {f"test_{n}": float(value) for n, value in enumerate(passed[:_PARTS])}
        parts |= {"passed": share, **{cause: float(count) for cause, count in causes.items()}}
        return Scored(share if self.partial else float(share == 1.0), parts)

    def _limits(self) -> Limits:
        return Limits(wall_s=2 * self.seconds + 2, cpu_s=self.seconds, memory_mb=self.memory_mb)


@dataclass(frozen=True, slots=True)
class _Test:
    """A test: what follows the program, its input, and what is expected of it."""

    tail: str
    stdin: bytes
    stdout: str | None
    result: Any

    def holds(self, result: Result, tolerance: float) -> bool:
        """Return whether the program did what is expected."""
        if self.stdout is not None:
            return same.same_lines(result.stdout, self.stdout)
        _, _, last = result.stdout.rstrip(b"\n").rpartition(b"\n")
        try:
            return same.same(same.value(last), self.result, tolerance)
        except ValueError:
            return False


def _listed(row: Row, name: str) -> Sequence[Any]:
    tests = row.get(name)
    if not isinstance(tests, list) or not 1 <= len(tests) <= _MOST_TESTS:
        raise ValueError(f"the row's {name} must be a list of 1 to {_MOST_TESTS} tests")
    return tests


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _test(test: Any) -> _Test:
    """Return the test that a row holds. Raises ValueError."""
    fields = dict(test) if isinstance(test, Mapping) else {}
    match fields:
        case {"stdin": str(stdin), "stdout": str(stdout)} if len(fields) == 2:
            return _Test("\n", stdin.encode("utf-8", "replace"), stdout, None)
        case {"call": str(name), "args": list(arguments), "result": result} if len(fields) == 3:
            if not all(map(_is_name, name.split("."))):
                raise ValueError(f"a test calls {name!r:.60}, which is no name")
            return _Test(
                _CALL.format(name=name, arguments=json.dumps(arguments)), b"", None, result
            )
    raise ValueError(
        f'a test is {{"stdin", "stdout"}} or {{"call", "args", "result"}}, got {test!r:.80}'
    )
