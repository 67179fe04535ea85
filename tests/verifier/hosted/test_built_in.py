"""sql and search, in the children that run them."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan import registry
from banyan.environments.hosted import Hosted
from banyan.environments.hosting import Hosting
from banyan.environments.observation import Effect, ToolOutcome
from banyan.errors import InvalidInput
from services.verifier.environments.hosts import Hosts
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from tests.verifier.hosted.test_hosts import step

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[Hosts]:
    pool = Pool(Limits(deadline_s=5.0), width=1)
    yield Hosts(pool)
    await pool.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("data")
    at.chmod(0o755)
    with sqlite3.connect(at / "shop one.db") as db:
        db.execute("create table goods (name text, price real)")
        db.executemany("insert into goods values (?, ?)", [("tea", 2.5), ("rice\nred", 1.0)])
        db.executemany("insert into goods values ('n', ?)", [(n,) for n in range(40)])
    texts = [{"title": "Cats", "text": "cats sleep"}, {"text": "dogs bark at cats"}, {"text": "x"}]
    (at / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    return at


def built(name: str, **settings: Any) -> Hosted:
    environment = registry.environment(name, settings, Hosting(end="", seconds=5.0))
    assert isinstance(environment, Hosted) and environment.version
    return environment


SQL = {
    "select name, price from goods where price = 2.5": "name | price\ntea | 2.5",
    "select name from goods where price = 1.0 and name <> 'n'": "name\nrice red",
    "select name from goods where name = 'none'": "name\n(no rows)",
    "with recursive c(n) as (select 1 union select n + 1 from c where n < 3) select n from c": (
        "n\n1\n2\n3"
    ),
    "select sql from sqlite_schema": "sql\nCREATE TABLE goods (name text, price real)",
    "selec 1": 'error: OperationalError: near "selec": syntax error',
    "delete from goods": "error: DatabaseError: not authorized",
    "attach database '/etc/passwd' as p": "error: DatabaseError: not authorized",
    "pragma table_info(goods)": "error: DatabaseError: not authorized",
    "select load_extension('x')": "error: OperationalError: not authorized to use function: load",
    "select 1; select 2": "error: ProgrammingError: You can only execute one statement at a time.",
    "select hex(zeroblob(3000000))": "error: DataError: string or blob too big",
}


@pytest.mark.parametrize("statement", SQL)
async def test_sql_reads_and_nothing_else(hosts: Hosts, folder: Path, statement: str) -> None:
    environment = built("sql", database=str(folder / "shop one.db"))
    start = environment.reset({}, 0)
    answer = await step(hosts, environment, start, f"so <sql>{statement}</sql>")
    assert answer.text.startswith(SQL[statement]) and answer.effect is Effect.NONE
    assert answer.state == start, "nothing is ever repeated"


async def test_sql_counts_what_it_does_not_show(hosts: Hosts, folder: Path) -> None:
    environment = built("sql", database=str(folder), row_field="shop", rows=2, end="<go>")
    start = environment.reset({"shop": "shop one"}, 0)
    answer = await step(hosts, environment, start, "<sql>select name from goods<go>")
    assert answer.text == "name\ntea\nrice red\n… and 40 more"
    for shop in ("missing", f"../{folder.name}/shop one", ""):
        with pytest.raises(InvalidInput, match="there is no database for the row"):
            await step(hosts, environment, environment.reset({"shop": shop}, 0), "<sql>x<go>")


async def test_a_field_beside_a_single_database_is_refused(hosts: Hosts, folder: Path) -> None:
    environment = built("sql", database=str(folder / "shop one.db"), row_field="shop")
    with pytest.raises(InvalidInput, match="row_field 'shop' would not be read; leave it out"):
        await step(hosts, environment, environment.reset({"shop": "shop one"}, 0), "<sql>x</sql>")


async def test_a_folder_needs_a_field_of_its_rows(hosts: Hosts, folder: Path) -> None:
    for more, words in (({}, "is a folder: set row_field"), ({"row_field": "db"}, "no field 'db'")):
        environment = built("sql", database=str(folder), **more)
        with pytest.raises(InvalidInput, match=words):
            await step(hosts, environment, environment.reset({"d": 1}, 0), "<sql>select 1</sql>")


async def test_sql_reads_a_database_as_it_lies(hosts: Hosts, folder: Path) -> None:
    """One whose log would be written by opening it, with a name that an address would cut."""
    with sqlite3.connect(folder / "50%20 #1?.db") as db:
        db.execute("pragma journal_mode = wal")
        db.execute("create table goods (name text)")
        db.execute("insert into goods values ('salt')")
    db.close()
    environment = built("sql", database=str(folder), row_field="shop")
    start = environment.reset({"shop": "50%20 #1?"}, 0)
    answer = await step(hosts, environment, start, "<sql>select name from goods</sql>")
    assert answer.text == "name\nsalt"


ENDLESS = "with recursive c(n) as (select 1 union all select n + 1 from c) select max(n) from c"


async def test_an_endless_statement_is_ended_by_its_steps(hosts: Hosts, folder: Path) -> None:
    environment = built("sql", database=str(folder / "shop one.db"), steps=100_000)
    start = environment.reset({}, 0)
    answer = await step(hosts, environment, start, f"<sql>{ENDLESS}</sql>")
    words = "error: ValueError: a statement may take 100000 steps of SQLite; ask for less"
    assert answer.outcome is ToolOutcome.FAILED and answer.text == words
    count = "select count(*) from goods"
    assert (await step(hosts, environment, start, f"<sql>{count}</sql>")).text == "count(*)\n42"


async def test_an_endless_statement_is_ended_by_its_time(hosts: Hosts, folder: Path) -> None:
    settings = {"database": str(folder / "shop one.db"), "steps": 10**12}
    environment = registry.environment("sql", settings, Hosting(end="", seconds=0.5))
    answer = await step(hosts, environment, environment.reset({}, 0), f"<sql>{ENDLESS}</sql>")
    assert answer.outcome is ToolOutcome.CPU and answer.text == "error: the time is over"


FIXED = {
    "current_timestamp": "2000-01-01 00:00:00",
    "date('now', '+1 day')": "2000-01-02",
    "time()": "00:00:00",
    "strftime('%Y')": "2000",
    "strftime('%d', 'NOW', '-1 day')": "31",
    "date('2024-02-28', '+1 day')": "2024-02-29",
    "julianday('2000-01-02') - julianday()": "1.0",
    "datetime('no time')": "None",
    "strftime()": "None",
}


async def test_sqls_clock_stands_still(hosts: Hosts, folder: Path) -> None:
    environment = built("sql", database=str(folder / "shop one.db"))
    start, asked = environment.reset({}, 0), ", ".join(FIXED)
    answer = await step(hosts, environment, start, f"<sql>select {asked}</sql>")
    assert answer.text.split("\n")[1].split(" | ") == list(FIXED.values())


async def test_sqls_chance_is_the_seeds(hosts: Hosts, folder: Path) -> None:
    environment = built("sql", database=str(folder / "shop one.db"))
    drawn = "<sql>select random() = random(), random(), hex(randomblob(4))</sql>"
    said = []
    for seed in (1, 1, 2):
        start = environment.reset({}, seed)
        said.append((await step(hosts, environment, start, drawn)).text.split("\n")[1])
    assert said[0] == said[1] != said[2] and said[0].startswith("0 | ")


async def test_half_a_database_is_refused(hosts: Hosts, folder: Path) -> None:
    (folder / "no.db").write_text("a text, and no database")
    with closing(sqlite3.connect(folder / "new.db")) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("create table unseen (n)")
        for name, words in (("new", "has changes in new.db-wal"), ("no", "is no SQLite database")):
            environment = built("sql", database=str(folder / f"{name}.db"))
            with pytest.raises(InvalidInput, match=words):
                await step(hosts, environment, environment.reset({}, 0), "<sql>select 1</sql>")


SEARCH = {
    "cats": "[1] Cats: cats sleep\n[2] dogs bark at cats",
    'dogs" OR * NEAR(': "[1] dogs bark at cats",
    "birds": "(nothing found)",
    "!?": "error: ValueError: a question needs words",
}


@pytest.mark.parametrize("question", SEARCH)
async def test_search_ranks_passages(hosts: Hosts, folder: Path, question: str) -> None:
    environment = built("search", corpus=str(folder / "texts.jsonl"))
    answer = await step(
        hosts, environment, environment.reset({}, 0), f"<search>{question}</search>"
    )
    assert answer.text == SEARCH[question]


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [("sql", "database", "is no SQLite database"), ("search", "corpus", "holds no texts")],
)
async def test_a_file_that_can_answer_nothing_is_refused(
    hosts: Hosts, tmp_path: Path, name: str, setting: str, message: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    environment = built(name, **{setting: str(tmp_path / "empty")})
    with pytest.raises(InvalidInput, match=message):
        await step(hosts, environment, environment.reset({}, 0), "a call")


async def test_a_corpus_line_without_text_is_named(hosts: Hosts, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for second in (b'{"txt": "b"}', b'{"text": "b\xff"}'):
        (tmp_path / "texts.jsonl").write_bytes(b'{"text": "a"}\n' + second + b"\n")
        environment = built("search", corpus=str(tmp_path / "texts.jsonl"))
        with pytest.raises(InvalidInput, match="line 2 is no object with a"):
            await step(hosts, environment, environment.reset({}, 0), "<search>a</search>")


async def test_an_action_without_a_call_is_answered(hosts: Hosts, folder: Path) -> None:
    environment = built("search", corpus=str(folder / "texts.jsonl"))
    answer = await step(hosts, environment, environment.reset({}, 0), "cats</search>")
    assert answer.text == "error: no <search>…</search>"
    assert answer.outcome is ToolOutcome.MALFORMED


async def test_sql_sorts_more_than_it_keeps_in_one_piece(hosts: Hosts, folder: Path) -> None:
    """More than a megabyte, for which SQLite would make a file, which a step may not."""
    with closing(sqlite3.connect(folder / "long.db")) as db:
        db.execute("create table texts (n, text)")
        rows = [(n, f"{n * 7919 % 4000:04}" + "x" * 2000) for n in range(4000)]
        db.executemany("insert into texts values (?, ?)", rows)
        db.commit()
    environment = built("sql", database=str(folder / "long.db"), rows=1)
    asked = "select substr(text, 1, 4) from (select * from texts order by text desc)"
    answer = await step(hosts, environment, environment.reset({}, 0), f"<sql>{asked}</sql>")
    assert "\n3999\n" in answer.text, answer.text
