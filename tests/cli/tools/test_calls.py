"""`banyan tools --call`: answers to calls of one's own, without a model."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.cli.command import banyan
from tests.cli.refusals import refused

CODE = """
import time
from banyan.environments.tools import tool

@tool(effect="external")
def order(item: str) -> str:
    "Order an item."
    raise SystemExit("never called")

class Door:
    def reset(self, row):
        self.at = row["at"]

    def step(self, action):
        if action == "fly":
            raise ValueError("say go")
        self.at += 1
        return f"at {self.at}", float(self.at == 3), self.at == 3

class Clock(Door):
    def step(self, action):
        return str(time.time_ns()), 0.0, False

class Stuck(Door):
    def step(self, action):
        time.sleep(60)

class Broken(Door):
    def step(self, action):
        return acton
"""
DOOR = {"name": "doors:Door", "end": "?"}
CALL = '<tool_call>{"name": "order", "arguments": {"item": "tea"}}</tool_call>'


@pytest.fixture(autouse=True)
def quiet_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANYAN_STATE", str(tmp_path / "state"))


def recipe(folder: Path, environment: dict[str, object]) -> Path:
    folder.chmod(0o755)
    (folder / "doors.py").write_text(CODE)
    (folder / "rows.jsonl").write_text('{"prompt": "a", "at": 0}\n{"prompt": "b", "at": 1}\n')
    parts = {
        "name": "x",
        "model": "m/m",
        "task": {"name": "file", "path": "rows.jsonl"},
        "environment": environment,
        "generate": {"policy": "turns"},
        "filter": [{"name": "environment"}],
    }
    (folder / "r.yaml").write_text(yaml.safe_dump(parts))
    return folder / "r.yaml"


def calls(*texts: str) -> list[str]:
    return [part for text in texts for part in ("--call", text)]


def test_calls_are_an_episode_of_a_row(tmp_path: Path) -> None:
    file = recipe(tmp_path, DOOR)
    result = banyan("tools", file, "--row", "1", *calls("go?", "fly?", "go", "go"))
    assert result.stdout.splitlines() == [
        "at 2",
        "error: ValueError: say go",
        "    (outcome FAILED)",
        "at 3",
        "    (reward 1, the episode is over)",
    ], result.stderr


@pytest.mark.parametrize(
    ("environment", "texts", "words"),
    [
        (
            {"name": "doors:Clock", "end": "?"},
            ("a", "b"),
            "call 2 gets no answer: environment doors",
        ),
        (
            {"name": "tools", "settings": {"functions": ["doors:order"]}, "external": ["order"]},
            (CALL,),
            "call 1 gets no answer: tool order of environment tools changes something outside",
        ),
    ],
)
def test_a_call_without_an_answer_is_named(
    tmp_path: Path, environment: dict[str, object], texts: tuple[str, ...], words: str
) -> None:
    result = banyan("tools", recipe(tmp_path, environment), *calls(*texts))
    assert result.returncode == 2 and words in result.stderr, result.stdout + result.stderr


def test_a_row_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(banyan("tools", recipe(tmp_path, DOOR), "--row", "2", "--call", "go"), "2 rows, 0 to 1")


def test_calls_behind_the_end_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    result = banyan("tools", recipe(tmp_path, DOOR), *calls("go", "go", "go", "go", "go"))
    assert result.stdout.splitlines()[-1] == "    (reward 1, the episode is over)"
    assert "the episode was over before the last 2 of 5 calls" in result.stderr


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"name": "calculator", "settings": {"begin": "=", "end": "?"}}, "=12 * (3 + 4.5)?"),
        ({"name": "python"}, "<python>print(2 ** 10)</python>"),
        ({"name": "search", "settings": {"corpus": "texts.jsonl"}}, "<search>who wrote"),
        (
            {"name": "sql", "settings": {"database": "shop.db"}},
            "</sql>\nIts tables:\nCREATE TABLE item (name TEXT)\n",
        ),
    ],
)
def test_environments_of_ours_tell_a_model_of_themselves(
    tmp_path: Path, environment: dict[str, object], words: str
) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a tree"}\n')
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE item (name TEXT)")
        shop.commit()
    result = banyan("tools", recipe(tmp_path, environment))
    assert words in result.stdout, result.stdout + result.stderr


def about_of(folder: Path, statements: str, **settings: object) -> str:
    with closing(sqlite3.connect(folder / "shop.db")) as shop:
        shop.executescript(statements)
    named = {"database": "shop.db", **settings}
    result = banyan("tools", recipe(folder, {"name": "sql", "settings": named}))
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_sql_tells_of_tables_and_views_alone(tmp_path: Path) -> None:
    said = about_of(
        tmp_path,
        "CREATE TABLE a (n INTEGER PRIMARY KEY AUTOINCREMENT); CREATE VIEW v AS SELECT n FROM a;"
        " CREATE VIRTUAL TABLE f USING fts5(t); CREATE INDEX i ON a (n);",
    )
    assert [line.split("(")[0].strip() for line in said.splitlines()[2:]] == [
        "CREATE TABLE a",
        "CREATE VIRTUAL TABLE f USING fts5",
        "CREATE VIEW v AS SELECT n FROM a",
    ]


def test_a_schema_of_any_size_and_bytes_keeps_no_run_from_starting(tmp_path: Path) -> None:
    assert "Its tables" not in about_of(tmp_path, "PRAGMA user_version = 1")
    many = ";".join(f"CREATE TABLE t{n} (c TEXT /* {'x' * 2000} */)" for n in range(600))
    assert len(about_of(tmp_path, many)) < 40_000
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE aa (c TEXT DEFAULT 'GROESSE')")
        shop.commit()
    file = tmp_path / "shop.db"
    file.write_bytes(file.read_bytes().replace(b"GROESSE", b"GR\xd6\xd6SSE"))
    assert "GR\ufffd\ufffdSSE" in banyan("tools", tmp_path / "r.yaml").stdout


def test_a_class_without_a_text_is_told_how_to_give_one(tmp_path: Path) -> None:
    refused(banyan("tools", recipe(tmp_path, DOOR)), "has no text about itself", "about()")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Clock", "answered action 1 of a path otherwise when it was repeated"),
        ("Stuck", "gives an empty action no answer"),
    ],
)
def test_a_dry_run_takes_two_steps(tmp_path: Path, kind: str, words: str) -> None:
    environment = {"name": f"doors:{kind}", "end": "?", "seconds": 1.0}
    refused(banyan("train", recipe(tmp_path, environment), "--dry-run"), words)


@pytest.mark.parametrize("arguments", [("train", "--dry-run"), ("tools",)])
def test_where_no_step_is_repeated_none_is_repeated_before(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    turns = {"turns": 1} if "train" in arguments else {}
    file = recipe(tmp_path, {"name": "doors:Clock", "end": "?", **turns})
    result = banyan(arguments[0], file, *arguments[1:])
    assert "otherwise" not in result.stderr, result.stderr


def test_a_long_answer_to_an_empty_action_is_shown_in_part(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(
        "class Long:\n"
        "    def reset(self, row): self.over = False\n"
        "    def step(self, action):\n"
        "        if self.over:\n"
        "            return 'there is no step behind the end'\n"
        "        self.over = True\n"
        "        return 'over' * 100, 0.0, True\n"
    )
    result = banyan("train", recipe(tmp_path, {"name": "long:Long", "end": "?"}), "--dry-run")
    assert "answers an empty action: overover" in result.stderr, result.stderr
    assert result.returncode == 0


def test_a_dry_run_says_what_an_empty_action_is_answered(tmp_path: Path) -> None:
    environment = {"name": "doors:Broken", "end": "?"}
    result = banyan("train", recipe(tmp_path, environment), "--dry-run")
    said = "environment doors:Broken answers an empty action: error: NameError: name 'acton'"
    assert said in result.stderr, result.stderr
