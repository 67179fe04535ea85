"""What the gateway is told by its environment."""

from dataclasses import dataclass

from services.chassis.process.settings import Settings as Shared


@dataclass(frozen=True, kw_only=True)
class Settings(Shared):
    """The gateway's own settings; all are read from BANYAN_<FIELD>."""

    listen: str = "127.0.0.1:7100"
    """host:port of the plain port, for people on this host or in this cluster."""
    join_listen: str = ""
    """host:port of the TLS port for nodes that join; empty for none."""
    join_address: str = ""
    """host:port under which nodes reach the TLS port; empty for `join_listen`."""
    join_nats: str = ""
    """host:port under which joined nodes reach NATS; without a host it is the one they reached the gateway at."""
