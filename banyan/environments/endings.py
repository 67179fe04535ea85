"""Endings: a verifier's word, with its proof, that actions get no answer.

A path whose last action gets none ends there, and the store makes its leaf UNSCORABLE. The proof
keeps nodes from dropping leaves that they dislike (docs/protocol.md, Environments).
"""

import hashlib
import hmac
from dataclasses import dataclass

from banyan.digest import DIGEST_BYTES, packed
from banyan.reasons import Reason

REASONS = frozenset(
    {
        Reason.ENVIRONMENT_DIVERGED,
        Reason.INFRASTRUCTURE,
        Reason.DEADLINE,
        Reason.EFFECT_UNKNOWN,
    }
)
_PERSON = b"banyan.ending.1"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of all paths that act at or below a place of a tree.

    place: id of the segment that the action at the place ends with
    reason: one of REASONS
    mac: keyed digest of run, tree, place and reason
    """

    place: bytes
    reason: str
    mac: bytes

    def proves(self, key: bytes, run_id: str, tree_id: bytes) -> bool:
        """Return whether a verifier that has the key (`receipts.key_of`) said this of the tree."""
        said = mac(key, run_id, tree_id, self.place, self.reason)
        return self.reason in REASONS and hmac.compare_digest(self.mac, said)


def mac(key: bytes, run_id: str, tree_id: bytes, place: bytes, reason: str) -> bytes:
    """Return the keyed BLAKE2b-256 of run, tree, place and reason: 32 bytes."""
    parts = (run_id.encode(), tree_id, place, reason.encode())
    text = b"".join(map(packed, parts))
    return hashlib.blake2b(text, key=key, person=_PERSON, digest_size=DIGEST_BYTES).digest()
