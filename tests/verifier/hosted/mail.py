"""Tools that change something outside: each writes a line to a server that it may reach."""

import os
import socket
from pathlib import Path
from typing import Literal

from banyan.environments.tools import tool

sent: list[str] = []


def _tell(port: int, line: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as channel:
        channel.sendall(f"{line}\n".encode())
        return channel.makefile().readline().strip()


@tool(effect="external")
def send(
    port: int, idempotency_key: str, then: Literal["", "raise", "die", "sleep", "spin"] = ""
) -> str:
    """Send a line."""
    sent.append(idempotency_key)
    answer = _tell(port, idempotency_key)
    match then:
        case "raise":
            raise ConnectionError("the line went dead")
        case "die":
            os.abort()
        case "sleep":
            socket.create_server(("127.0.0.1", 0)).accept()
        case "spin":
            while True:
                pass
    return answer


def post(port: int) -> str:
    """Send a line, undeclared and without a key."""
    return _tell(port, "post")


@tool(effect="state")
def note(word: str) -> str:
    """Note a word."""
    sent.append(word)
    return ",".join(sent)


@tool(effect="none")
def hosts() -> str:
    """Read the names of hosts."""
    return Path("/etc/hosts").read_text()


@tool(effect="none")
def secret(variable: str) -> str:
    """Read a variable."""
    return os.environ.get(variable, "none")
