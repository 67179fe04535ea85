"""Settings of the gateway, read from its environment."""

from dataclasses import dataclass

from services.chassis.process.settings import Settings as Shared


@dataclass(frozen=True, kw_only=True)
class Settings(Shared):
    """Settings of the gateway; every field is read from `BANYAN_<FIELD>`."""

    listen: str = "127.0.0.1:7100"
    """host:port of the plain port, for users on this host or in this cluster."""
    verifier: str = "127.0.0.1:7102"
    """host:port of the verifier, which answers the actions of joined nodes."""
    join_listen: str = ""
    """host:port of the TLS port for joining nodes; empty for none."""
    http_listen: str = ""
    """host:port of the page; empty for none. On another address than loopback all of it needs the
    token, which is the content of `secret_file`."""
    http_hosts: str = ""
    """Further host:port, with commas between them, under which browsers may reach the page, such as
    that of a proxy."""
    http_token: bool = False
    """True if reading the page needs the token on loopback, too: where other users of this host, or
    a proxy on it, must not read for free."""
    join_address: str = ""
    """host:port under which nodes reach the TLS port; empty for `join_listen`."""
    join_nats: str = ""
    """host:port under which joined nodes reach NATS; an empty host means the gateway's."""
