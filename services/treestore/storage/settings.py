"""Settings of the treestore."""

from dataclasses import dataclass

from services.chassis.process.settings import Settings as Shared


@dataclass(frozen=True, kw_only=True)
class Settings(Shared):
    """What the treestore reads from `BANYAN_…`."""

    listen: str = "127.0.0.1:7101"
    """host:port of the gRPC server."""
    database: str = ""
    """SQLAlchemy address of the database; empty for SQLite in the state folder."""
    read_only: bool = False
    """Answers queries only, without a bus; works while nothing else runs, and beside a running
    treestore.
    """
    rebuild: bool = False
    """The store lost rows and reads them from the log again: it takes claims from there that it
    never issued (ADR 052).
    """
    claim_ms: int = 30_000
    """How long a claim holds without progress or renewal: twice the broker's ack_wait, so that the
    broker decides first.
    """
    requeue_ms: int = 60_000
    """How long a tree may go unclaimed before it is queued again; doubles each time."""
    max_claims: int = 5
    """Claims without a new segment after which a tree is dropped, where its spec names none."""
    max_returns: int = 200
    """Times that nodes may hand a tree back before it is dropped: a policy that never comes must
    not hang a run.
    """
    score_deadline_ms: int = 600_000
    """How long a grown leaf may wait for its scores, where its tree's spec names no time."""
    park_ms: int = 3_600_000
    """How long an event may wait for what must come before it; then it is a dead letter."""
    kept_rows: int = 1000
    """Most rows that each of parked, refused, late and dead events may have by a node; eight times
    as many by a run.
    """
    kept_bytes: int = 32 << 20
    """Most bytes of those rows, likewise."""
    blob_bytes: int = 32 << 20
    """Most bytes of a segment that is too large for a message; a million tokens take half of it."""
    tick_ms: int = 1000
    """Time between looks at the deadlines."""
    purge_s: float = 60.0
    """Time between purges of the log."""
    purge_margin: int = 1000
    """Messages that a purge leaves although every consumer has them."""
    ack_wait_s: float = 5.0
    """When messages that a killed store had taken come again; an ingest takes a hundredth of it."""
    ingest_batch: int = 256
    """Most messages in one ingest transaction."""

    @property
    def database_url(self) -> str:
        """Address of the database, with its default."""
        return self.database or f"sqlite:///{self.state / 'store.sqlite'}"
