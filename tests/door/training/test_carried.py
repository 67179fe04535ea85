"""Rewards passed from Python: found in their module, or copied with what they use."""

import functools
import importlib.util
import math
import random
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from banyan.cli.train.from_python.carried import Copy
from banyan.cli.train.from_python.reward import scorer_of
from banyan.errors import InvalidInput

ROOT = Path(__file__).parents[3]
WORDS = {"yes": 1.0, "no": [0.0, None, ("a", b"b")]}
PATTERN = re.compile(r"(\d+)\s", re.IGNORECASE)
PLACE = Path("a") / "b"
LOCK = threading.Lock()
LARGE = list(range(300_000))
completion = "a global that has the name of a parameter"


def halved(value: float) -> float:
    return value / 2


def even(number: int) -> bool:
    return number == 0 or odd(number - 1)


def odd(number: int) -> bool:
    return number != 0 and even(number - 1)


class Judge:
    """Judge of an answer."""

    scale = 3.0

    def score(self, text: str) -> float:
        return halved(self.scale * len(text))


@functools.cache
def cached(text: str) -> int:
    return len(text)


def called(source: str, name: str, *arguments: Any, **named: Any) -> Any:
    """Return what a copied function answers in another interpreter."""
    program = f"{source}\nimport json\nprint(json.dumps({name}(*{arguments!r}, **{named!r})))"
    found = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=30
    )
    assert found.returncode == 0, found.stderr
    return __import__("json").loads(found.stdout)


def own(function: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the copy of a function as of a script's `__main__`."""
    for thing in (function, halved, even, odd, Judge, cached, cached.__wrapped__):
        monkeypatch.setattr(thing, "__module__", "__main__", raising=False)
    return Copy(function).source


def test_a_function_brings_what_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    def reward(completion: str, answer: str, rate: float = math.pi, **row: Any) -> list[Any]:
        inner = [halved(WORDS["yes"]) for _ in range(2)]
        return [inner, bool(PATTERN.search("12 ")), PLACE.name, even(4), completion + answer, rate]

    source = own(reward, monkeypatch)
    assert called(source, "reward", "a", answer="b") == [[0.5, 0.5], True, "b", True, "ab", math.pi]
    assert "a global that has the name" not in source


def test_classes_and_decorated_functions_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def reward(completion: str, **row: Any) -> float:
        return Judge().score(completion) + cached(completion)

    assert called(own(reward, monkeypatch), "reward", "abcd") == 6.0 + 4


def test_variables_of_a_function_around_it_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    target, help_of = "42", halved

    def reward(completion: str, **row: Any) -> float:
        return help_of(float(completion == target))

    assert called(own(reward, monkeypatch), "reward", "42") == 0.5


def test_functions_of_the_standard_library_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, sqrt, path = random.choice, math.sqrt, Path

    def reward(completion: str, **row: Any) -> list[Any]:
        return [choice("aa"), sqrt(4), path("a/b").name, random.random() < 1]

    assert called(own(reward, monkeypatch), "reward", "x") == ["a", 2.0, "b", True]


def test_an_asynchronous_function_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reward(completion: str, **row: Any) -> float:
        return halved(1.0)

    source = (
        own(reward, monkeypatch) + "\nimport asyncio\ndef run(c): return asyncio.run(reward(c))"
    )
    assert called(source, "run", "x") == 0.5


@pytest.mark.parametrize("name", ["LOCK", "LARGE"])
def test_what_cannot_be_copied_is_named_with_a_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(completion: str, **row: Any) -> float:
        with LOCK:
            return 1.0

    def large(completion: str, **row: Any) -> float:
        return LARGE[0]

    function = {"LOCK": lock, "LARGE": large}[name]
    with pytest.raises(InvalidInput, match=f"'{name}'.*in(to)? .*(file|module)"):
        own(function, monkeypatch)


def test_two_things_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    halved = random.random

    def reward(completion: str, **row: Any) -> float:
        return halved() + Judge().score(completion)

    with pytest.raises(InvalidInput, match="two different things named 'halved'"):
        own(reward, monkeypatch)


def test_a_function_of_a_module_is_imported_from_there(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_rewards.py").write_text("def right(completion, **row):\n    return 1.0\n")
    spec = importlib.util.spec_from_file_location("my_rewards", folder / "my_rewards.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["my_rewards"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = scorer_of(module.right, tmp_path / "code")
    finally:
        del sys.modules["my_rewards"]
    assert found.entry == {"name": "my_rewards:right"} and found.folders == (folder.resolve(),)
    assert not (tmp_path / "code").exists()


def test_equal_functions_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reward(completion: str, **row: Any) -> float:
        return 1.0

    first, second = (scorer_of(reward, tmp_path) for _ in range(2))
    assert first == second and len(list(tmp_path.iterdir())) == 1
    assert first.entry["name"].endswith(":reward") and first.folders == (tmp_path.resolve(),)


def test_a_function_of_whole_groups_is_marked(tmp_path: Path) -> None:
    def reward(prompts: list[str], completions: list[str], **row: Any) -> list[float]:
        return [1.0 for _ in completions]

    assert scorer_of(reward, tmp_path).entry["group"] is True


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (lambda completion, **row: 1.0, "is a lambda"),
        (functools.partial(halved, 1.0), "must be a function"),
        (3, "must be a function"),
        (len, "must be a function"),
    ],
)
def test_what_is_no_function_is_refused(reward: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        scorer_of(reward, tmp_path)


def test_a_function_without_source_says_where_to_put_it(tmp_path: Path) -> None:
    made: dict[str, Any] = {"__name__": "__main__"}
    exec("def reward(completion, **row):\n    return 1.0", made)
    with pytest.raises(InvalidInput, match=r"does not know the source .* rewards\.py"):
        scorer_of(made["reward"], tmp_path)


def test_a_script_that_trains_is_not_run_again(tmp_path: Path) -> None:
    """A script's function is copied, as importing the script would train once more."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from pathlib import Path
            from banyan.cli.train.from_python.reward import scorer_of
            BEST = 2
            def reward(completion, **row):
                return BEST
            print("ran")
            print(scorer_of(reward, Path("code")).entry["name"])
            """
        )
    )
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    words = ran.stdout.split()
    module = words[1].partition(":")[0]
    used = subprocess.run(
        [sys.executable, "-c", f"import {module}; print({module}.reward('x'))"],
        cwd=tmp_path / "code", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert used.stdout == "2\n", used.stderr
