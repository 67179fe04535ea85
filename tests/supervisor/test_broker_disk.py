"""A broker refused messages for want of room: it is started again once there is room."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.supervisor.broker_disk import ROOM, BrokerDisk

REFUSAL = "[7] 16:01:46 [ERR] JetStream failed to store a msg on stream 'A > LINEAGE'"


@pytest.mark.parametrize(
    ("line", "free", "told"),
    [
        (f"{REFUSAL}: write /x/1.blk: no space left on device\n", ROOM, True),
        (f"{REFUSAL}: write /x/1.blk: disk quota exceeded\n", ROOM, True),
        (f"{REFUSAL}: write /x/1.blk: no space left on device\n", ROOM - 1, False),
        (f"{REFUSAL}: maximum messages exceeded\n", ROOM, False),
    ],
)
def test_a_broker_that_refuses_messages_is_started_again_once_its_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, free: int, told: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    log = tmp_path / "nats.log"
    log.write_text("started\n" + line)  # by an earlier process
    disk = BrokerDisk(log, tmp_path)
    assert not disk.problem()
    with log.open("a") as out:
        out.write(line)
    assert bool(disk.problem()) is told and not disk.problem()
    log.write_text(line)  # rotated, and written again
    assert bool(disk.problem()) is told
