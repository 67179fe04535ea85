"""Ports of servers: never one that the kernel may give to an outgoing connection meanwhile."""

import socket
from pathlib import Path

import pytest

from banyan.runtime.ports import free_port


def test_a_kept_port_is_none_that_an_outgoing_connection_may_take() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if high - low > 50_000:
        pytest.skip("this machine leaves hardly any port to servers")
    found = {free_port() for _ in range(50)}
    assert len(found) > 40
    assert not [port for port in found if low <= port <= high or port < 1024]
    with socket.socket() as server:
        server.bind(("127.0.0.1", found.pop()))


def test_an_address_of_another_host_is_an_error() -> None:
    with pytest.raises(OSError, match="assign"):
        free_port("192.0.2.1")
