"""Join tokens: 128 random bits and the fingerprint of the gateway's certificate.

`<32 hex>.<64 hex>`. Only the first part is a secret, and only it is sent; the store holds its hash.
The second part tells the node which gateway to trust before it sends anything (docs/protocol.md,
Tokens).
"""

import re
import secrets
from dataclasses import dataclass

from banyan.digest import blake
from banyan.errors import InvalidInput

_TEXT = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Token:
    """A join token.

    secret: 32 hex digits.
    fingerprint: SHA-256 of the gateway's certificate, 64 hex digits.
    """

    secret: str
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.secret}.{self.fingerprint}"

    def __repr__(self) -> str:
        return f"Token(…, {self.fingerprint[:8]}…)"  # a secret must not end in a log


def make(fingerprint: str) -> Token:
    """Return a new token for the gateway with this certificate."""
    return Token(secrets.token_hex(16), fingerprint)


def parse(text: str) -> Token:
    """Return the token of a text.

    Raise InvalidInput; the message does not repeat what may be a secret.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(
            "a join token is 32 hex digits, a dot and 64 hex digits; this one has"
            f" {len(text.strip())} characters. Copy the whole line that `banyan train --listen`"
            " or `banyan token` printed"
        )
    return Token(match[1], match[2])


def secret_hash(secret: str) -> bytes:
    """Return the hash of a token's secret that the store keeps."""
    return blake(b"banyan.token.v1", secret.encode())
