"""The secret of a state folder: who can read it may command what runs there; every plain gRPC port asks for it.

It is 256 random bits in a file that only its owner can read, so being able to reach a port on loopback opens nothing.
"""

import collections
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

FILE = "secret"  # in the state folder
KEY = "banyan-secret"  # gRPC metadata


def make(path: Path) -> str:
    """The secret in a file; made if there is none."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return read(path) or _replace(path)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    return read(path)


def _replace(path: Path) -> str:
    """A process that was killed in between left an empty file."""
    path.unlink()
    return make(path)


def read(path: Path) -> str:
    """The secret in a file; empty if there is none."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def channel(inner: grpc.Channel, secret: str) -> grpc.Channel:
    """A synchronous channel whose calls carry the secret; without one, the channel itself."""
    return grpc.intercept_channel(inner, _Bearer(secret)) if secret else inner


def with_secret(details: Any, secret: str) -> "Details":
    """A call's details with the secret among its metadata."""
    metadata = [*(details.metadata or ()), (KEY, secret)]
    return Details(
        details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
    )


class Details(
    collections.namedtuple(
        "Details", ("method", "timeout", "metadata", "credentials", "wait_for_ready")
    ),
    grpc.ClientCallDetails,
):
    """What gRPC asks of a call's details."""

    compression: Any = None


class _Bearer(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, secret: str) -> None:
        self._secret = secret

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        return continuation(with_secret(details, self._secret), request)

    def intercept_unary_stream(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        return continuation(with_secret(details, self._secret), request)
