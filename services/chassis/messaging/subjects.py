"""The streams of the log and their subjects (DESIGN 4)."""

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

LINEAGE, GROWTH, TRAIN, SWARM, DEAD = "LINEAGE", "GROWTH", "TRAIN", "SWARM", "DEAD"
LINEAGE_KINDS = ("opened", "segment", "leaf", "grown", "score", "closed")
MOST_LEAVES = 64  # of a message: a verifier answers for all of them together, and takes no more
MOST_TREES = 64  # of a message that says that trees are grown, or closed; a verifier refuses more

# Bytes at most. The treestore purges what all consumers have taken, so they are never reached in health. The broker counts
# them as taken from the start, against its `max_file_store`, whatever is in the streams.
_SEGMENTS = 2 << 30
_SMALL = 256 << 20


def _stream(
    name: str, subjects: list[str], retention: RetentionPolicy, max_bytes: int, **more: object
) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=subjects,
        retention=retention,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,  # full is back-pressure, reported; old messages are never thrown away unseen
        max_bytes=max_bytes,
        duplicate_window=120,
        **more,  # type: ignore[arg-type]
    )


STREAMS = (
    _stream(LINEAGE, ["lineage.*.*"], RetentionPolicy.LIMITS, _SEGMENTS),
    _stream(GROWTH, ["growth.*"], RetentionPolicy.WORK_QUEUE, _SMALL),
    _stream(TRAIN, ["train.*.*"], RetentionPolicy.LIMITS, _SMALL),
    _stream(SWARM, ["swarm.*.*"], RetentionPolicy.LIMITS, _SMALL),
    _stream(
        DEAD,
        ["dead.>", "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"],
        RetentionPolicy.LIMITS,
        _SMALL,
    ),
)
_MOST_BYTES = {stream.name: int(stream.max_bytes or 0) for stream in STREAMS}
RESERVED = sum(int(stream.max_bytes or 0) for stream in STREAMS)


def most_bytes(stream: str) -> int:
    """What a stream may hold."""
    return _MOST_BYTES[stream]


def lineage(run_id: str, kind: str) -> str:
    """`lineage.<run>.<kind>`; `*` for either matches all."""
    return f"lineage.{run_id}.{kind}"


def run_of(subject: str) -> str:
    """The run that a subject of the log names; empty where it names none."""
    words = subject.split(".")
    return words[1] if len(words) > 1 and words[0] in ("lineage", "growth", "train") else ""


def growth(run_id: str) -> str:
    """`growth.<run>`."""
    return f"growth.{run_id}"


def growth_durable(run_id: str) -> str:
    """Durable consumer of a run's growth queue: one for all its nodes, because a work queue has one per subject."""
    return f"grow-{run_id}"


def growth_run(name: str) -> str:
    """The run of a growth subject or of its durable consumer; empty for other names."""
    return next((name.removeprefix(p) for p in ("growth.", "grow-") if name.startswith(p)), "")


def train(run_id: str, kind: str) -> str:
    """`train.<run>.batch` or `train.<run>.policy`."""
    return f"train.{run_id}.{kind}"


def weights_bucket(run_id: str) -> str:
    """Object store that a run's weights go out through, where its recipe says so."""
    return f"weights-{run_id}"


def weights_run(bucket: str) -> str:
    """The run of an object store of weights; empty for other names."""
    return bucket.removeprefix("weights-") if bucket.startswith("weights-") else ""


def weights_wanted(run_id: str) -> str:
    """Where a node asks for a whole version. No stream holds it: who needs one asks until it is there."""
    return f"weights.{run_id}.wanted"


def dead(stream: str) -> str:
    """`dead.<stream>`."""
    return f"dead.{stream}"
