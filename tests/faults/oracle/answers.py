"""Answers of environments in a finished run: where they stand, and that their tokens and those of
their actions say what the receipts say.
"""

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from banyan.digest import blake
from banyan.environments import endings
from banyan.environments.observation import Effect
from banyan.segment import Finish, Kind
from banyan.v1 import tree_pb2
from services.rollout.engines.scripted.tokenizer import CharacterTokenizer
from tests.faults.oracle.lineage import CLOSED, CONSUMED, UNSCORABLE, short

Rows = Mapping[bytes, sqlite3.Row]
_ANSWERS = "select s.*, t.run_id from segments s join trees t on t.tree_id = s.tree_id"


def answers(db: sqlite3.Connection) -> Iterator[str]:
    """Yield answers that stand behind no action or are not proven, and actions of finished trees
    that nobody answered.
    """
    rows = {row["id"]: row for row in db.execute("select * from segments")}
    begun = {row["action"] for row in db.execute("select action from effects")}
    answered = set()
    for row in rows.values():
        if row["kind"] != Kind.TOOL:
            continue
        action = rows.get(row["parent"])
        if action is None or (action["finish"], action["length"], 0) != (
            Finish.TOOL_CALL,
            row["fork"],
            row["ordinal"],
        ):
            yield f"answer {short(row['id'])} stands behind no action"
        receipt = tree_pb2.Receipt.FromString(row["receipt"] or b"")
        seen = receipt.observation
        if seen.action != row["parent"] or seen.shown != blake(row["text"].encode()):
            yield f"answer {short(row['id'])} has a receipt for something else, or none"
        if seen.effect == Effect.EXTERNAL and row["parent"] not in begun:
            yield f"answer {short(row['id'])} is to an effect that was never begun"
        answered.add(row["parent"])
    over = {
        row["tree_id"]
        for row in db.execute("select tree_id from trees where state in (?, ?)", (CLOSED, CONSUMED))
    }
    answered |= _ended(db)
    for row in rows.values():
        is_action = row["finish"] == Finish.TOOL_CALL and row["tree_id"] in over
        if is_action and row["id"] not in answered:
            yield f"action {short(row['id'])} has no answer"


def _ended(db: sqlite3.Connection) -> set[bytes]:
    """Return the actions whose paths ended without an answer, and for that without a score."""
    rows = db.execute(
        "select c.segment, c.reason from scores c join segments s on s.id = c.segment"
        " where c.end = s.length and c.state = ?",
        (UNSCORABLE,),
    )
    return {row["segment"] for row in rows if row["reason"].partition(":")[0] in endings.REASONS}


def states(db: sqlite3.Connection) -> Iterator[str]:
    """Yield answers that were not given in the state that their path was in, and those that left
    another one though their step changes nothing of the environment.

    A path is in the state that its last answer left, or, before the first one, in the one that all
    paths of its tree begin in.
    """
    rows: Rows = {row["id"]: row for row in db.execute("select * from segments order by n")}
    begun: dict[bytes, bytes] = {}
    for row in rows.values():
        if row["kind"] != Kind.TOOL:
            continue
        seen = tree_pb2.Receipt.FromString(row["receipt"] or b"").observation
        above = rows.get(row["parent"])
        while above is not None and above["kind"] != Kind.TOOL:
            above = rows.get(above["parent"])
        if above is None:
            found = begun.setdefault(row["tree_id"], seen.state_before)
        else:
            found = tree_pb2.Receipt.FromString(above["receipt"] or b"").observation.state_after
        if seen.state_before != found:
            yield f"answer {short(row['id'])} was given in another state than its path's"
        if seen.effect != Effect.STATE and seen.state_after != seen.state_before:
            yield f"answer {short(row['id'])} left another state, though its step changes none"


@dataclass(frozen=True)
class Reader:
    """The tokenizer of a run.

    decode: text of little-endian int32 tokens
    known: a text as its tokens give it back
    """

    decode: Callable[[bytes], str]
    known: Callable[[str], str]


def words(db: sqlite3.Connection) -> Iterator[str]:
    """Yield actions whose tokens are no text of their receipt, and answers whose tokens are not the
    stored text between two turns of the run's template.
    """
    rows: Rows = {row["id"]: row for row in db.execute(_ANSWERS)}
    readers: dict[str, Reader | None] = {}
    frames: dict[str, tuple[str, str]] = {}
    for row in rows.values():
        if row["kind"] != Kind.TOOL or row["parent"] not in rows:
            continue
        run_id = row["run_id"]
        if run_id not in readers:
            readers[run_id] = _reader(db, run_id)
        if (reader := readers[run_id]) is None:
            yield f"answer {short(row['id'])} cannot be read: run {run_id} has no tokenizer"
            continue
        call = tree_pb2.Receipt.FromString(row["receipt"] or b"").call
        action = reader.decode(_action(rows, row))
        if action != reader.known(call):
            yield f"action {short(row['parent'])} says something else than its receipt"
        said = reader.decode(row["tokens"]).removeprefix(ending(action))
        text = reader.known(row["text"])
        goes_on = row["finish"] == Finish.BOUNDARY
        if text and goes_on and run_id not in frames:
            frames[run_id] = _frame(said, text)
        if run_id in frames and not _says(said, text.join(frames[run_id]), whole=goes_on):
            yield f"answer {short(row['id'])} has tokens that say something else than its text"


def ending(action: str) -> str:
    """Return what a turn has to end first: a block of thoughts that the model left open."""
    return "</think>" if action.rfind("<think>") > action.rfind("</think>") else ""


def _says(said: str, turn: str, *, whole: bool) -> bool:
    """Tell whether tokens say a turn; where the path ends with it, the model's length may have cut
    it, also inside of a character.
    """
    return said == turn or (not whole and turn.startswith(said.rstrip("\ufffd")))


def _reader(db: sqlite3.Connection, run_id: str) -> Reader | None:
    row = db.execute("select * from runs where run_id = ?", (run_id,)).fetchone()
    recipe = json.loads(row["recipe_json"] or "{}")
    if recipe.get("resources", {}).get("engine") == "scripted":
        characters = CharacterTokenizer()
        return Reader(
            decode=lambda tokens: characters.decode(np.frombuffer(tokens, "<i4")),
            known=lambda text: characters.decode(characters.encode(text)),
        )
    data = db.execute("select data from tokenizers where digest = ?", (row["tokenizer"],))
    if (stored := data.fetchone()) is None:
        return None
    tokenizer = Tokenizer.from_str(zlib.decompress(stored["data"]).decode())
    return Reader(
        decode=lambda tokens: str(
            tokenizer.decode(np.frombuffer(tokens, "<i4").tolist(), skip_special_tokens=True)
        ),
        known=lambda text: text,
    )


def _action(rows: Rows, answer: sqlite3.Row) -> bytes:
    """Return the tokens of an answer's action: those since the prompt or the last answer."""
    parts: list[bytes] = []
    at, end = rows[answer["parent"]], answer["fork"]
    while at["kind"] not in (Kind.PROMPT, Kind.TOOL):
        parts.append(at["tokens"][: 4 * end])
        at, end = rows[at["parent"]], at["fork"]
    return b"".join(reversed(parts))


def _frame(said: str, text: str) -> tuple[str, str]:
    """Return what a template writes around an answer; nothing where the text is not in it."""
    head, found, tail = said.partition(text)
    return (head, tail) if found else ("", "")
