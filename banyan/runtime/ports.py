"""Free ports for servers on this machine."""

import errno
import random
import socket
from collections.abc import Collection
from pathlib import Path


def free_port(host: str = "127.0.0.1", taken: Collection[int] = ()) -> int:
    """Return a port that is free now and not among `taken`.

    It lies outside the range of outgoing connections, none of which can occupy it before the
    server binds it.
    """
    low, high = _outgoing_ports()
    servers = sorted({*range(20_000, low), *range(high + 1, 65_536)} - set(taken))
    for port in [*random.SystemRandom().sample(servers, min(100, len(servers))), 0]:
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            return int(probe.getsockname()[1])
    raise OSError(errno.EADDRINUSE, "no port is free")


def _outgoing_ports() -> tuple[int, int]:
    """Return the first and last port that the kernel gives to outgoing connections."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999
