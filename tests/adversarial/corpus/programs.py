"""`code`: only a program that computes what its tests expect is worth a point."""

from collections.abc import Iterator

from tests.adversarial.corpus.case import UNSCORABLE, Case, Subject, Table, cases
from tests.adversarial.corpus.generic import DEEP, MB, generic

QUICK = {"seconds": 0.5, "memory_mb": 64}
BRIEF = {"seconds": 0.1, "memory_mb": 64}  # far less than its time on the wall, on a busy machine
TESTS = [
    {"call": "total", "args": [[1, 2, 3]], "result": 6},
    {"call": "total", "args": [[-5, 2]], "result": -3},
]
ROW = {"question": "Write total(numbers).", "tests": TESTS}
CALLS = Subject("code", QUICK, ROW)
SHARE = Subject("code", {**QUICK, "partial": True}, ROW)
DOUBLE = {"question": "Double it.", "tests": [{"stdin": "2\n", "stdout": "4\n"}]}
LINES = Subject("code", QUICK, DOUBLE)
TRUE = Subject(
    "code",
    QUICK,
    {"question": "Say true.", "tests": [{"call": "f", "args": [], "result": True}]},
)


def _program(text: str) -> str:
    return f"```python\n{text}\n```"


RIGHT = _program("def total(numbers):\n    return sum(numbers)")
CALLED: Table = {
    "a program": (RIGHT, 1.0),
    "a program in a block that never ends": (RIGHT.removesuffix("```"), 1.0),
    "a program before another": (RIGHT + "\n" + _program("total = None"), 0.0),
    "a constant": (_program("def total(numbers):\n    return 6"), 0.0),
    "no function": (_program("x = 1"), 0.0),
    "a right program without a block": ("def total(numbers):\n    return sum(numbers)", 0.0),
    "an exit": (_program("import os\nos._exit(0)"), 0.0),
    "an exit with thanks": (_program("import sys\nsys.exit(0)"), 0.0),
    "an exit while called": (_program("def total(numbers):\n    raise SystemExit(0)"), 0.0),
    "an exception": (_program("def total(numbers):\n    raise ValueError"), 0.0),
    "printed instead": (_program("def total(numbers):\n    print(6)"), 0.0),
    "printed and left": (_program("import os\nprint(6, flush=True)\nos._exit(0)"), 0.0),
    "the truth of all": (
        _program(
            "class Same(int):\n    def __eq__(self, other): return True\n"
            "    __hash__ = None\n"
            "def total(numbers):\n    return Same(7)"
        ),
        0.0,
    ),
    "an object that equals all": (
        _program(
            "class Same:\n    def __eq__(self, other): return True\n"
            "def total(numbers):\n    return Same()"
        ),
        0.0,
    ),
    "equality itself": (
        _program(
            "import builtins, operator\noperator.eq = lambda a, b: True\n"
            "builtins.all = lambda _: True\ndef total(numbers):\n    return None"
        ),
        0.0,
    ),
    "a dump of its own": (
        _program("import json\njson.dumps = lambda _: 'true'\ndef total(numbers):\n    return 0"),
        0.0,
    ),
    "its own source": (
        _program(
            "import sys\ndef total(numbers):\n"
            "    frame = sys._getframe(1)\n"
            "    return frame.f_globals.get('result', frame.f_globals.get('expected'))"
        ),
        0.0,
    ),
    "its memory": (
        _program(
            "import gc\ndef total(numbers):\n"
            "    return [o for o in gc.get_objects() if isinstance(o, dict) and 'result' in o]"
        ),
        0.0,
    ),
    "files of the grader": (
        _program(
            "import glob\ndef total(numbers):\n"
            "    for file in glob.glob('/proc/*/cmdline') + glob.glob('/tmp/**', recursive=True):\n"
            "        try:\n            text = open(file).read()\n        except OSError:\n"
            "            continue\n        if 'result' in text:\n            return 6\n    return 0"
        ),
        0.0,
    ),
    "a frame of the grader": (
        _program(
            "import os\nfor n in range(3, 64):\n"
            "    try:\n        os.write(n, b'DONE')\n    except OSError:\n        pass\n"
            "def total(numbers):\n    return 0"
        ),
        0.0,
    ),
    "not a number": (_program("def total(numbers):\n    return float('nan')"), 0.0),
    "infinity": (_program("def total(numbers):\n    return float('inf')"), 0.0),
    "true for one": (_program("def total(numbers):\n    return True"), 0.0),
    "text for a number": (_program("def total(numbers):\n    return str(sum(numbers))"), 0.0),
    "a number of a megabyte": (
        _program("def total(numbers):\n    import sys\n    print('6' * 60_000)\n    sys.exit(0)"),
        0.0,
    ),
    "a deep answer": (
        _program(f"import os\nprint('[' * {DEEP // 2}, flush=True)\nos._exit(0)"),
        0.0,
    ),
    "a deep program": (_program("(" * DEEP), 0.0),
    "a program of minus signs": (_program("-" * DEEP + "1"), 0.0),
    "a program of attributes": (_program("a" + ".a" * DEEP), 0.0),
    "a program of a megabyte": (_program("#" + "x" * MB), 0.0),
    "a program with a NUL": (_program("x = 1\0"), 0.0),
    "a program with a lone surrogate": (_program("x = '\ud800'"), 0.0),
    "bytes that are no text": (
        _program("import os\nos.write(1, b'\\xff\\xfe')\nos._exit(0)"),
        0.0,
    ),
    "a crash": (_program("import ctypes\nctypes.string_at(0)"), 0.0),
    "a signal to all": (
        _program("import os\nos.kill(-1, 9)\ndef total(numbers):\n    return 0"),
        0.0,
    ),
    "a child": (_program("import os\nos.fork()\ndef total(numbers):\n    return 0"), 0.0),
}
PRINTED: Table = {
    "a program": (_program("print(2 * int(input()))"), 1.0),
    "blanks at the end": (_program("print(str(2 * int(input())) + '   \\n')"), 1.0),
    "all numbers": (_program("print(*range(100), sep='\\n')"), 0.0),
    "another number": (_program("print(5)"), 0.0),
    "nothing": (_program("pass"), 0.0),
    "the right line and more": (_program("print(4)\nprint(4)"), 0.0),
    "the right line, then a failure": (_program("print(4)\nraise SystemExit(1)"), 0.0),
    "other digits": (_program("print('\u0664')"), 0.0),
    "a zero-width space": (_program("print('4\u200b')"), 0.0),
    "the error stream": (_program("import sys\nprint(4, file=sys.stderr)"), 0.0),
}
ENDLESS: Table = {
    "endless output": (_program("while True:\n    print('4' * 1000)"), 0.0),
    "an endless loop": (_program("while True:\n    pass"), 0.0),
    "an endless sleep": (_program("import time\ntime.sleep(3600)"), 0.0),
    "endless memory": (_program("x = [0]\nwhile True:\n    x += x"), 0.0),
    "endless memory at once": (_program("x = bytearray(1 << 40)"), 0.0),
    "endless recursion": (_program("def f():\n    f()\nf()"), 0.0),
    "endless processes": (_program("import os\nwhile True:\n    os.fork()"), 0.0),
    "endless files": (
        _program("n = 0\nwhile True:\n    open(str(n), 'w').write('x')\n    n += 1"),
        0.0,
    ),
    "an endless power": (_program("9 ** 9 ** 9"), 0.0),
}


def every() -> Iterator[Case]:
    """Yield the cases of the scorer; the jail has its verdicts on what exhausts, too."""
    yield from generic(CALLS)
    yield from cases(CALLS, CALLED)
    yield from cases(LINES, PRINTED)
    yield from cases(Subject("code", BRIEF, DOUBLE), ENDLESS)
    yield from cases(SHARE, {"half": (_program("def total(numbers):\n    return 6"), 0.5)})
    yield from cases(
        TRUE,
        {
            "one for true": (_program("def f():\n    return 1"), 0.0),
            "true": (_program("def f():\n    return True"), 1.0),
        },
    )
    for label, tests in {
        "no tests": [],
        "tests that are none": "x",
        "a name that is code": [{"call": "f()", "args": [], "result": 1}],
    }.items():
        yield from cases(Subject("code", QUICK, {"tests": tests}), {label: (RIGHT, UNSCORABLE)})
