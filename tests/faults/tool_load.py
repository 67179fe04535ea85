"""A run under tool load: its recipe, its answers as they are stored, and its paths made again."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from banyan import registry
from banyan.digest import blake
from banyan.draws import key as draw_key
from banyan.environments.hosting import Hosting
from banyan.environments.observed import answer_digest
from banyan.plugins.environment import Answer
from banyan.segment import Finish, Kind
from banyan.v1 import tree_pb2
from banyan.wire import receipts
from services.verifier.environments.hosts import Hosts
from services.verifier.hosted.user_class import UserEnvironment
from tests.faults.harness import recipe, tiny_model
from tests.faults.till import Till

CALCULATOR: dict[str, Any] = {"name": "calculator", "settings": {"begin": "=", "end": "?"}}
TILL: dict[str, Any] = {"name": "tests.faults.till:Till", "end": "?"}
SCORERS = ("regex", "environment")
# A product between = and ?, an answer, then nearly always another call.
_CHAIN = {
    "": {"=": 1.0},
    "=": {"6": 0.5, "1": 0.5},
    "=6": {"*": 1.0},
    "=6*": {"7": 1.0},
    "=6*7": {"?": 1.0},
    "=1": {"*": 1.0},
    "=1*": {"1": 1.0},
    "=1*1": {"?": 1.0},
    " ": {"=": 0.8, "a": 0.1, "b": 0.1},
    "a": {"": 1.0},
    "b": {"": 1.0},
}


def tool_load(folder: Path, environment: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return a recipe whose trees fork behind answers and whose paths act several times."""
    rows = folder / "rows.jsonl"
    lines = (json.dumps({"prompt": "go" + "o" * n, "answer": "a"}) for n in range(64))
    rows.write_text("\n".join(lines))
    data = recipe(
        tiny_model(folder / "model"),
        task={"name": "file", "path": str(rows), "reward": "number"},
        generate={
            "policy": "turns",
            "settings": {"starts": 2, "branches": 2, "depth": 2},
            "max_new_tokens": 40,
        },
        environment={**environment, "turns": 3},
        filter=[
            {"name": "regex", "settings": {"pattern": "^(a)$", "equals": "answer"}},
            {"name": "environment"},
        ],
        # Killed at any moment, a node may claim a tree often before it gets anywhere.
        control={"groups_per_batch": 4, "max_staleness": 0, "max_claims": 100},
        budget={"steps": steps, "minutes": 10.0},
    )
    data["resources"]["engine_settings"] = {"chain": _CHAIN, "latency_s": 0.01}
    return data


def answers(database: Path) -> int:
    """Return the number of answers in a store that runs."""
    if not database.exists():
        return 0
    with closing(_read(database)) as db:
        query = "select count(*) from segments where kind = ?"
        ((count,),) = db.execute(query, (int(Kind.TOOL),)).fetchall()
        return int(count)


def answered_otherwise(database: Path) -> Iterator[str]:
    """Yield actions without exactly one answer."""
    with closing(_read(database)) as db:
        yield from (
            f"{tree.hex()[:12]} has {count} answers to action {action.hex()[:12]}"
            for tree, action, count in db.execute(
                "select a.tree_id, a.id, count(s.id) from segments a left join segments s on"
                " s.tree_id = a.tree_id and s.parent = a.id and s.kind = ?"
                " where a.finish = ? group by a.tree_id, a.id having count(s.id) <> 1",
                (int(Kind.TOOL), int(Finish.TOOL_CALL)),
            )
        )


async def moved(database: Path, environment: Mapping[str, Any]) -> list[str]:
    """Return the answers whose states are not those that their path leads to from the beginning.

    The steps are made in this process, from the actions of the receipts.
    """
    hosting = Hosting(end=environment["end"]) if "end" in environment else None
    made = registry.environment(environment["name"], environment.get("settings", {}), hosting)
    with closing(_read(database)) as db:
        segments = {row["id"]: row for row in db.execute("select * from segments order by n")}
        specs = {
            row["tree_id"]: tree_pb2.TreeSpec.FromString(row["spec"])
            for row in db.execute("select tree_id, spec from trees")
        }
    states: dict[bytes, bytes] = {}
    wrong = []
    for row in segments.values():
        if row["kind"] != Kind.TOOL:
            continue
        spec = specs[row["tree_id"]]
        receipt = receipts.from_wire(tree_pb2.Receipt.FromString(row["receipt"]))
        seen = receipt.observation
        if (above := _answer_above(segments, row)) is None:
            before = made.reset(json.loads(spec.row_json), draw_key(spec.seed, "environment"))
        else:
            before = states[above]
        answer = await _step(made, before, receipt.call)
        states[row["id"]] = answer.state
        found = (blake(before), blake(answer.state), answer_digest(answer), answer.reward)
        if found != (seen.before, seen.after, seen.answer, seen.reward):
            wrong.append(f"answer {row['id'].hex()[:12]} stands elsewhere: {answer.text!r}")
    assert states, "no path acted"
    return wrong


def change_a_call(database: Path) -> None:
    """Let the first answer stand behind another call than the one that was made."""
    with closing(sqlite3.connect(database)) as db, db:
        query = "select id, receipt from segments where kind = ? order by n limit 1"
        ((answer, data),) = db.execute(query, (int(Kind.TOOL),)).fetchall()
        receipt = tree_pb2.Receipt.FromString(data)
        receipt.call = "=9*9?"
        db.execute(
            "update segments set receipt = ? where id = ?", (receipt.SerializeToString(), answer)
        )


def _answer_above(segments: Mapping[bytes, sqlite3.Row], row: sqlite3.Row) -> bytes | None:
    """Return the id of the answer before one on its path; None for the first."""
    at = segments[row["parent"]]
    while at["kind"] not in (Kind.PROMPT, Kind.TOOL):
        at = segments[at["parent"]]
    return at["id"] if at["kind"] == Kind.TOOL else None


class _Here:
    """Steps of the class in this process, in place of the verifier's children."""

    async def ask(
        self, spec: Any, request: Mapping[str, Any], *, begin: Any = None
    ) -> dict[str, Any]:
        return UserEnvironment(Till(), spec.name).did(request)


async def _step(environment: Any, state: bytes, action: str) -> Answer:
    if not hasattr(environment, "turn"):
        answer: Answer = environment.step(state, action)
        return answer
    pool: Any = _Here()
    turn = environment.turn(state, action)
    result = await Hosts(pool).do(next(turn))
    try:
        turn.send(result)
    except StopIteration as end:
        answer = end.value
        return answer
    raise AssertionError("one step is one task")


def _read(database: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    return db
