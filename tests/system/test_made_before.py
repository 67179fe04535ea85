"""A state folder of an earlier layout of the code goes on: database, checkpoint and recipe.

`stored/made-before-packages.tar.xz` holds a run of six steps, stopped after five, as the version
before ADR 056 wrote it: its SQLite store, its newest checkpoint, and its model of a few thousand
weights. NATS' files are not in it.
"""

import tarfile
from pathlib import Path

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from tests.cli.command import banyan
from tests.faults.harness import system

STORED = Path(__file__).parent / "stored" / "made-before-packages.tar.xz"
RUN = "before-1c424680"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with tarfile.open(STORED) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "state"


@pytest.mark.parametrize(
    "command", [("runs", "ls"), ("runs", "show", RUN), ("train", "--resume", "--run", "another")]
)
def test_commands_read_the_folder_of_an_earlier_version(
    state: Path, command: tuple[str, ...]
) -> None:
    ended = banyan(*command, "--state", state)
    assert RUN in ended.stdout + ended.stderr, ended  # the last one names what can be resumed


@pytest.mark.slow
async def test_a_run_that_an_earlier_version_began_is_ended_by_this_one(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # its recipe names ~/model
    async with system(state) as made:
        made.run_id = RUN
        ended = await made.finish()
    assert ended.state == rs.RUN_STATE_SUCCEEDED, ended.cause
    database = Database(f"sqlite:///{state / 'store.sqlite'}").open()
    try:
        batches = await database.read(lambda c: c.execute(schema.batches.select()).fetchall())
    finally:
        database.close()
    epochs = {row.ordinal: row.learner_epoch for row in batches}
    assert epochs.pop(5) > 1, "a new learner made the last step"
    assert epochs == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}, "it went on from the old checkpoint"
