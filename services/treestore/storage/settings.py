"""Settings of the treestore."""

from dataclasses import dataclass
from functools import cached_property

from sqlalchemy import URL

from banyan.environments import receipts
from services.chassis.process.settings import Settings as Shared


@dataclass(frozen=True, kw_only=True)
class Settings(Shared):
    """The settings that the treestore reads from `BANYAN_…`."""

    listen: str = "127.0.0.1:7101"
    """Address of the gRPC server, host:port."""
    database: str = ""
    """SQLAlchemy address of the database; empty for SQLite in the state folder."""
    read_only: bool = False
    """Answer queries only, without a bus; works without and beside a running treestore.

    A SQLite file of an earlier version is upgraded first, unless a treestore has it open.
    """
    offline: bool = False
    """Answer and store without a bus and without loops: for a command, while no system runs."""
    rebuild: bool = False
    """Accept claims from the log that this store never issued, as it lost its rows (ADR 052)."""
    claim_ms: int = 30_000
    """Time that a claim is kept without progress or renewal.

    It is twice the broker's ack_wait, so that the broker decides first.
    """
    requeue_ms: int = 60_000
    """Time that a tree may be unclaimed before it is queued again; doubles each time."""
    max_claims: int = 5
    """Claims without a new segment after which a tree is dropped, unless its spec has a number."""
    max_returns: int = 200
    """Returns after which a tree is dropped: a policy that never comes must not hang a run."""
    score_deadline_ms: int = 600_000
    """Time that a grown leaf may wait for its scores, unless its tree's spec has one."""
    park_ms: int = 3_600_000
    """Time that an event may wait for a missing fact; then it becomes a dead letter."""
    kept_rows: int = 1000
    """Bound of parked, refused, late and dead rows each, by node; eight times as many by run."""
    kept_bytes: int = 32 << 20
    """Bound of the bytes of these rows, likewise."""
    blob_bytes: int = 32 << 20
    """Bound of a segment that is too large for a message; a million tokens take half of it."""
    tick_ms: int = 1000
    """Time between checks of the deadlines."""
    purge_s: float = 60.0
    """Time between purges of the log."""
    purge_margin: int = 1000
    """Messages that a purge leaves although every consumer has them."""
    ack_wait_s: float = 5.0
    """Time after which messages that a killed store took come again; an ingest takes 1 % of it."""
    ingest_batch: int = 256
    """Bound of the messages in one ingest transaction."""

    @property
    def redelivery_ms(self) -> int:
        """Time after which the broker delivers the assignment of a silent node again."""
        return self.claim_ms // 2

    @cached_property
    def receipt_key(self) -> bytes:
        """Key of the receipts of environments' answers."""
        return receipts.key_of(self.secret)

    @property
    def database_url(self) -> str | URL:
        """Address of the database, with its default.

        The default is no text: in that, some characters of a folder's name have another meaning.
        """
        return self.database or URL.create("sqlite", database=str(self.state / "store.sqlite"))
