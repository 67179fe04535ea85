"""NATS JWTs: an operator vouches for accounts, and an account for users.

Each is signed with an nkey.
"""

import base64
import hashlib
import json
import os
import time
from typing import Any

import nkeys

OPERATOR, ACCOUNT, USER = (
    nkeys.PREFIX_BYTE_OPERATOR,
    nkeys.PREFIX_BYTE_ACCOUNT,
    nkeys.PREFIX_BYTE_USER,
)


def new_seed(kind: int) -> str:
    """Return a new seed of an operator, an account or a user."""
    return str(nkeys.encode_seed(os.urandom(32), kind).decode())


def public_key(seed: str) -> str:
    """Return the public key of a seed."""
    return str(nkeys.from_seed(seed.encode()).public_key.decode())


def sign(
    issuer_seed: str, subject: str, name: str, claims: dict[str, Any], valid_s: int = 0
) -> str:
    """Return a JWT about `subject`. With `valid_s` 0 it never expires."""
    now = int(time.time())
    body = {
        "iat": now,
        "iss": public_key(issuer_seed),
        "name": name,
        "sub": subject,
        "nats": {**claims, "version": 2},
    }
    if valid_s:
        body["exp"] = now + valid_s
    body["jti"] = base64.b32encode(hashlib.sha256(_json(body)).digest()).decode().rstrip("=")
    text = f"{_encode(_json({'typ': 'JWT', 'alg': 'ed25519-nkey'}))}.{_encode(_json(body))}"
    return f"{text}.{_encode(nkeys.from_seed(issuer_seed.encode()).sign(text.encode()))}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def credentials_file(jwt: str, seed: str) -> str:
    """Return the text of a NATS credentials file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
