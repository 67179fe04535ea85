"""Steps of a learner for the tests of loggers, and the records that were written of them."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from banyan.loggers import Logger
from services.learner.loggers.feed import Feeds
from tests.learner.in_memory_learner import RUN

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "recipes" / "quickstart.yaml").read_text()
RECIPE = {"name": "tiny", "control": {"groups_per_batch": 2}}


def fed(folder: Path, name: str, logger: Logger, steps: range, *labels: str) -> Feeds:
    """Feed a logger with steps, and with evaluations at the last of them."""
    feeds = Feeds(RUN, RECIPE, {name: logger}, folder / "loggers")
    for step in steps:
        feeds.step(step, {"reward": step / 10, "loss": float("nan")})
    for label in labels:
        feeds.evaluation(label, steps[-1], {"eval_greedy_reward": 0.5})
    feeds.close(60.0)
    assert [feed.lost for feed in feeds.feeds] == [0]
    return feeds


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the records that the logger `jsonl` wrote."""
    return [
        json.loads(line)
        for line in (folder / "loggers" / "jsonl" / "metrics.jsonl").read_text().splitlines()
    ]


def next_second() -> None:
    """Wait for the next second, by which two of the loggers name their files."""
    until = int(time.time()) + 1
    while time.time() < until:
        time.sleep(0.05)


def events(folder: Path) -> Iterator[Any]:
    """Read event files as TensorBoard does: length, its checksum, data, its checksum."""
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            length, crc = struct.unpack_from("<QI", data, at)
            assert crc == masked_crc32c(data[at : at + 8])
            body = data[at + 12 : at + 12 + length]
            assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(body)
            yield event_pb2.Event.FromString(body)
            at += length + 16


def _records(data: bytes) -> Iterator[Any]:
    """Read a W&B file: after 7 bytes a LevelDB log of protobuf records in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    at, buffer = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        buffer += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or a last part
            yield wandb_internal_pb2.Record.FromString(buffer)
            buffer = b""


def history(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a W&B run that was kept offline."""
    paths = sorted((folder / "loggers" / "wandb" / "wandb").glob(f"offline-run-*/run-{RUN}.wandb"))
    return [
        {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for item in record.history.item
        }
        for path in paths
        for record in _records(path.read_bytes())
        if record.HasField("history")
    ]
