"""The streams of the log and their subjects; docs/protocol.md, Streams."""

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

LINEAGE = "LINEAGE"
GROWTH = "GROWTH"
TRAIN = "TRAIN"
SWARM = "SWARM"
DEAD = "DEAD"
LINEAGE_KINDS = ("opened", "segment", "leaf", "grown", "score", "closed")
MOST_LEAVES = 64  # of a message: the verifier acknowledges all of them together, and refuses more
MOST_TREES = 64  # of a message about the ends of trees; the verifier refuses more

# Size limits in bytes. The treestore purges messages that all consumers have acknowledged, so a
# healthy system stays far below them. The broker reserves them from the start, against its
# `max_file_store`, whatever the streams hold.
_SEGMENTS = 2 << 30
_SMALL = 256 << 20


def _stream(
    name: str, subjects: list[str], retention: RetentionPolicy, max_bytes: int
) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=subjects,
        retention=retention,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,  # a full stream is back-pressure; it never drops old messages
        max_bytes=max_bytes,
        duplicate_window=120,
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
RESERVED = sum(_MOST_BYTES.values())


def most_bytes(stream: str) -> int:
    """Return the size limit of a stream in bytes."""
    return _MOST_BYTES[stream]


def lineage(run_id: str, kind: str) -> str:
    """Return the subject `lineage.<run>.<kind>`; `*` for either matches all."""
    return f"lineage.{run_id}.{kind}"


def run_of(subject: str) -> str:
    """Return the run that a subject of the log names; empty if it names none."""
    words = subject.split(".")
    return words[1] if len(words) > 1 and words[0] in ("lineage", "growth", "train") else ""


def growth(run_id: str) -> str:
    """Return the subject `growth.<run>`."""
    return f"growth.{run_id}"


def growth_durable(run_id: str) -> str:
    """Return the durable consumer of a run's growth queue.

    All nodes of the run share it, because a work queue has one consumer per subject.
    """
    return f"grow-{run_id}"


def growth_run(name: str) -> str:
    """Return the run of a growth subject or of its durable consumer; empty for other names."""
    for prefix in ("growth.", "grow-"):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return ""


def train(run_id: str, kind: str) -> str:
    """Return the subject `train.<run>.batch` or `train.<run>.policy`."""
    return f"train.{run_id}.{kind}"


def weights_bucket(run_id: str) -> str:
    """Return the object store of a run's weights, used if its recipe asks for one."""
    return f"weights-{run_id}"


def weights_run(bucket: str) -> str:
    """Return the run of an object store of weights; empty for other names."""
    return bucket.removeprefix("weights-") if bucket.startswith("weights-") else ""


def weights_wanted(run_id: str) -> str:
    """Return the subject on which a node asks for a whole version of the weights.

    No stream stores it: a node repeats the request until the version is there.
    """
    return f"weights.{run_id}.wanted"


def dead(stream: str) -> str:
    """Return the subject `dead.<stream>`."""
    return f"dead.{stream}"
