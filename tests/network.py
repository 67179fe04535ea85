"""A second host on this machine: a network namespace with a wire to it."""

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Network:
    """A wire to another host.

    address: of this host on the wire
    inside: command that runs something on the other host
    device: the other host's end of the wire
    """

    address: str
    inside: tuple[str, ...]
    name: str
    device: str

    def cut(self) -> None:
        """Silence the other host, as a loss of power does.

        Nothing that it sends arrives, and it sends no goodbye.
        """
        _ip("-n", self.name, "link", "set", self.device, "down")


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Makes one; skips the test where nobody may."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root and iproute2 for a network namespace; tests/setup.sh installs it")
    name = f"bn{uuid.uuid4().hex[:8]}"
    here, there = f"{name}h", f"{name}n"
    subnet = f"10.{200 + os.getpid() % 50}.{uuid.uuid4().bytes[0]}"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this host lets nobody make network namespaces: {error.stderr.strip()}")
    try:
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        _ip("addr", "add", f"{subnet}.1/24", "dev", here)
        _ip("link", "set", here, "up")
        _ip("-n", name, "addr", "add", f"{subnet}.2/24", "dev", there)
        _ip("-n", name, "link", "set", there, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        yield Network(f"{subnet}.1", ("ip", "netns", "exec", name), name, there)
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", here)
        _ip("netns", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)
