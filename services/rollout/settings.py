"""Settings of a rollout node, read from `BANYAN_<FIELD>`."""

from dataclasses import dataclass
from pathlib import Path

from services.chassis.process.settings import Settings as Shared


@dataclass(frozen=True, kw_only=True)
class Settings(Shared):
    """The run that the node serves, its name, and its ways to the store and NATS.

    Everything about sampling is in the run's recipe.
    """

    run: str
    """Id of the run."""
    verifier: str = "127.0.0.1:7102"
    """host:port of the verifier, which answers actions."""
    node_id: str = "rollout-0"
    """Name of this node, which is in every segment that it makes."""
    threads: int | None = None
    """Torch threads; empty for torch's own choice. The launcher divides the cores."""
    threads_file: Path | None = None
    """File in which the launcher changes the number of threads while the process runs; empty for
    none."""
    policy_wait_s: float = 30.0
    """Time that a claimed tree waits for a policy that may sample it, before it is returned."""
    segment_deadline_s: float = 120.0
    """Time that a tree may stand still before its claim is no longer renewed."""
    drain_s: float = 8.0
    """Time to return trees when the node ends; less than the launcher's grace."""
    joined: bool = False
    """True if the node came by `banyan join`: it then ends with the run and gets weights through
    the gateway."""
    store_tls_root: Path | None = None
    """PEM file of the only certificate to trust for the store's address; empty for no TLS."""
    store_tls_name: str = ""
    """Name in that certificate."""
    store_token: str = ""
    """Token that opens the store's address."""
    nats_inbox: str = ""
    """Inbox prefix that the node's credentials allow; empty for the default."""
    growth_consumer: str = ""
    """Durable consumer of assignments that was made for this node; empty to make the run's own."""
