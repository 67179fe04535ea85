"""A verifier that is killed while a tool acts outside: each call is made once at most."""

import asyncio
import contextlib
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from banyan.environments.external import idempotency_key
from banyan.environments.observation import Effect
from banyan.segment import Kind
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from tests.faults.audit import audit
from tests.faults.harness import System, recipe, system, tiny_model
from tests.faults.oracle.allowed import Allowed

STEPS = 2
MAIL = """
import socket
from banyan.environments.tools import tool

@tool(effect="external")
def send(to: str, idempotency_key: str) -> str:
    with socket.create_connection(("127.0.0.1", PORT), timeout=60.0) as channel:
        channel.sendall(f"{idempotency_key}\\n".encode())
        return channel.makefile().readline().strip()
"""
CALL = '={"name": "send", "arguments": {"to": "x"}}?'
CHAIN: dict[str, Any] = {
    **{CALL[:n]: {CALL[n]: 1.0} for n in range(1, len(CALL))},
    "": {"=": 0.3, "a": 0.4, "b": 0.3},  # greedy paths of evaluations send nothing
    "sent ": {"a": 0.6, "b": 0.4},
    "a": {"": 1.0},
    "b": {"": 1.0},
}


class Outside:
    """What the tool reaches: it writes each key that it gets into a file."""

    def __init__(self, file: Path) -> None:
        self.file, self.reached = file, asyncio.Event()
        self.port = 0

    async def took(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        with self.file.open("ab") as file:
            file.write(line)
        if not self.reached.is_set():
            self.reached.set()
            await reader.read()  # the first gets no answer: its verifier is killed
        else:
            writer.write(b"sent\n")
        writer.close()

    @property
    def keys(self) -> list[str]:
        return self.file.read_text().split()


@contextlib.asynccontextmanager
async def outside(file: Path) -> AsyncIterator[Outside]:
    made = Outside(file)
    server = await asyncio.start_server(made.took, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


def acting(folder: Path, port: int) -> dict[str, Any]:
    """Return a recipe whose tool sends, and write what it needs."""
    (folder / "mail.py").write_text(MAIL.replace("PORT", str(port)))
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"go{n}", "answer": "a"}) + "\n" for n in range(20))
    )
    data = recipe(
        tiny_model(folder / "model"),
        task={"name": "file", "path": str(rows), "reward": "number"},
        generate={"policy": "iid", "settings": {"width": 8}, "max_new_tokens": 60},
        environment={
            "name": "tools",
            "settings": {"functions": ["mail:send"], "begin": "=", "end": "?"},
            "external": ["send"],
            "network": True,
            "turns": 2,
            "seconds": 60.0,
        },
        filter=[{"name": "regex", "settings": {"pattern": "^(a)$", "equals": "answer"}}],
        budget={"steps": STEPS, "minutes": 5.0},
    )
    data["resources"]["engine_settings"] = {"chain": CHAIN, "latency_s": 0.005}
    return data


async def killed_while_it_sends(made: System, there: Outside) -> None:
    async with asyncio.timeout(180):
        await there.reached.wait()
    await made.kill("verifier")


@pytest.mark.slow
async def test_a_verifier_that_is_killed_between_intent_and_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("BANYAN_PATH", str(tmp_path))
    allowed = {"BANYAN_SANDBOX_NETWORK": "1"}
    async with outside(tmp_path / "sent") as there, system(tmp_path / "state", allowed) as made:
        await made.create(acting(tmp_path, there.port))
        await killed_while_it_sends(made, there)
        run = await made.finish()
        keys = there.keys
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    database = tmp_path / "state" / "store.sqlite"
    assert audit(database, run.run_id, STEPS, Allowed(unscorable=("EFFECT_UNKNOWN",))) == []
    assert set(Counter(keys).values()) == {1}, "each was called once"
    copy = tmp_path / "copy.sqlite"
    shutil.copy(database, copy)
    with sqlite3.connect(copy) as db:
        db.execute("delete from effects where receipt is not null")
    assert any("was never begun" in fault for fault in audit(copy, run.run_id, STEPS))
    with sqlite3.connect(database) as db:
        begun = db.execute("select tree_id, action, receipt, answer from effects").fetchall()
        tools = db.execute(
            "select parent, receipt from segments where kind = ?", (int(Kind.TOOL),)
        ).fetchall()
        lost = {
            segment
            for (segment,) in db.execute(
                "select segment from scores where reason like 'EFFECT_UNKNOWN%' and state = 2"
            )
        }
    of_key = {idempotency_key(tree, action): action for tree, action, _, _ in begun}
    assert set(keys) <= set(of_key), "nothing was called that was not noted before"
    unanswered = {action for _, action, receipt, _ in begun if receipt is None}
    assert of_key[keys[0]] in unanswered and unanswered == lost
    answered = {action for _, action, receipt, answer in begun if receipt and answer == b"sent"}
    external = {
        action
        for action, receipt in tools
        if tree_pb2.Receipt.FromString(receipt).observation.effect == Effect.EXTERNAL
    }
    assert answered == external and len(answered) >= 4, "the rest went on"
