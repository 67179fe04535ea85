"""Receipts: the proof that an observation came from a verifier, and belongs to this action."""

import hashlib
import hmac
from dataclasses import dataclass

from banyan.digest import DIGEST_BYTES, packed
from banyan.environments.observation import Observation

_PERSON = b"banyan.receipt.1"


@dataclass(frozen=True)
class Receipt:
    """An observation with its proof.

    mac: keyed digest of run, tree, action and observation
    call: text of the action, for who makes the state again
    """

    observation: Observation
    mac: bytes
    call: str = ""

    def proves(self, key: bytes, run_id: str, tree_id: bytes, action: bytes) -> bool:
        """Return whether a verifier that has the key gave this answer to this action."""
        same = self.observation.action == action
        return same and hmac.compare_digest(self.mac, mac(key, run_id, tree_id, self.observation))


def key_of(secret: str) -> bytes:
    """Return the key of a system's receipts, derived from its secret, which joined nodes lack."""
    return hashlib.blake2b(secret.encode(), person=_PERSON, digest_size=DIGEST_BYTES).digest()


def mac(key: bytes, run_id: str, tree_id: bytes, observation: Observation) -> bytes:
    """Return the keyed BLAKE2b-256 of run, tree, action and observation: 32 bytes."""
    text = b"".join(
        (
            packed(run_id.encode()),
            packed(tree_id),
            packed(observation.action),
            packed(observation.digest),
        )
    )
    return hashlib.blake2b(text, key=key, person=_PERSON, digest_size=DIGEST_BYTES).digest()
