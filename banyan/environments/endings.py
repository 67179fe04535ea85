"""Endings: a verifier's word, with its proof, that actions get no answer.

A path whose last action gets none ends there, and the store makes its leaf UNSCORABLE. The proof
keeps nodes from dropping leaves that they dislike (docs/protocol.md, Environments).
"""

import hashlib
import hmac
from dataclasses import dataclass

from banyan.digest import DIGEST_BYTES, packed
from banyan.environments.cut import cut
from banyan.reasons import Reason
from banyan.text.printable import encodable

REASONS = frozenset(
    {
        Reason.ENVIRONMENT_DIVERGED,
        Reason.ENVIRONMENT_FAULT,
        Reason.INFRASTRUCTURE,
        Reason.DEADLINE,
        Reason.EFFECT_UNKNOWN,
    }
)
_PERSON = b"banyan.ending.2"
_MOST_CAUSE = 400  # characters


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of all paths that act at or below a place of a tree.

    place: id of the segment that the action at the place ends with
    reason: one of REASONS
    cause: what happened, in words
    mac: keyed digest of run, tree, place, reason and cause
    """

    place: bytes
    reason: str
    cause: str
    mac: bytes

    @classmethod
    def said(
        cls, key: bytes, run_id: str, tree_id: bytes, *, place: bytes, reason: str, cause: str
    ) -> "Ending":
        """Return a verifier's word on a tree, with its proof and what it has room for of a cause.

        key: the verifiers' own (`receipts.key_of`)
        """
        short = cut(" ".join(encodable(cause).split()), _MOST_CAUSE).replace("\n", " ")
        return cls(place, reason, short, _mac(key, run_id, tree_id, place, reason, short))

    def proves(self, key: bytes, run_id: str, tree_id: bytes) -> bool:
        """Return whether a verifier that has the key (`receipts.key_of`) said this of the tree."""
        said = _mac(key, run_id, tree_id, self.place, self.reason, self.cause)
        return self.reason in REASONS and hmac.compare_digest(self.mac, said)

    def __str__(self) -> str:
        """Return reason and cause, as the scores of its leaves have them."""
        return f"{self.reason}: {self.cause}" if self.cause else self.reason


def _mac(key: bytes, run_id: str, tree_id: bytes, place: bytes, reason: str, cause: str) -> bytes:
    """Return the keyed BLAKE2b-256 of run, tree, place, reason and cause: 32 bytes."""
    parts = (run_id.encode(), tree_id, place, reason.encode(), cause.encode())
    text = b"".join(map(packed, parts))
    return hashlib.blake2b(text, key=key, person=_PERSON, digest_size=DIGEST_BYTES).digest()
