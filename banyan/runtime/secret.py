"""Secret of a state folder: its readers may command the system; every plain gRPC port requires it.

It is 256 random bits in a file that only its owner can read, so access to a port on loopback is not
enough.
"""

import collections
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

FILE = "secret"  # in the state folder
METRICS_FILE = "metrics-key"  # in the state folder
KEY = "banyan-secret"  # gRPC metadata


def make(path: Path) -> str:
    """Return the secret in a file; create it if missing."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return read(path) or _replace(path)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    return read(path)


def metrics_key(secret: str) -> str:
    """Return the key that opens /metrics and nothing else; the secret does not follow from it.

    Whoever reads metrics sends it to each address that a state folder names, and one of a process
    that was killed may be another user's by then.
    """
    return hmac.digest(secret.encode(), b"banyan metrics", hashlib.sha256).hex()


def make_metrics_key(folder: Path) -> Path:
    """Write the key of a state folder's metrics, with its secret if that is missing; return its
    file."""
    file, key = folder / METRICS_FILE, metrics_key(make(folder / FILE))
    if read(file) != key:
        aside = folder / f"{METRICS_FILE}.{os.getpid()}"
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.write(key)
        aside.replace(file)
    return file


def _replace(path: Path) -> str:
    """Replace an empty file, which a process killed while writing left behind."""
    path.unlink()
    return make(path)


def read(path: Path) -> str:
    """Return the secret in a file; empty if missing."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def channel(inner: grpc.Channel, secret: str) -> grpc.Channel:
    """Return a synchronous channel whose calls carry the secret; the channel itself without one."""
    return grpc.intercept_channel(inner, _Bearer(secret)) if secret else inner


def with_secret(details: Any, secret: str) -> "Details":
    """Return a call's details with the secret in its metadata."""
    metadata = [*(details.metadata or ()), (KEY, secret)]
    return Details(
        method=details.method,
        timeout=details.timeout,
        metadata=metadata,
        credentials=details.credentials,
        wait_for_ready=details.wait_for_ready,
    )


class Details(
    collections.namedtuple(
        "Details", ("method", "timeout", "metadata", "credentials", "wait_for_ready")
    ),
    grpc.ClientCallDetails,
):
    """Details of a call, as gRPC expects them."""

    compression: Any = None


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
):
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
