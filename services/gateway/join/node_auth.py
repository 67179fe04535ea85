"""Proofs of a joined node's identity: its name, and a code over it that only the gateway can make.

A token opens a run to all of its nodes; the proof says which of them calls, so that none acts as
another. Nothing is stored for it: the key is the account's, which is in the state folder.
"""

import hashlib
import hmac
from pathlib import Path

from banyan.errors import Refused
from banyan.reasons import Reason
from services.gateway.join import nats_accounts

NO_PROOF = Reason.UNAUTHENTICATED
_BYTES = 16


class Proofs:
    """Makes and checks proofs with the key of a state folder."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def make(self, run_id: str, node_id: str) -> str:
        """Return a node's proof, `<node id>.<32 hex>`."""
        return f"{node_id}.{self._code(run_id, node_id)}"

    def node_of(self, proof: str, run_id: str) -> str:
        """Return the node that shows this proof. Raise Refused, UNAUTHENTICATED."""
        node_id, _, code = proof.partition(".")
        if not code or not hmac.compare_digest(code.encode(), self._code(run_id, node_id).encode()):
            raise Refused(
                f"this call does not say which node of run {run_id} it comes from: join first,"
                " and send the join token, a dot and the node_proof that JoinSwarm answers with",
                reason=NO_PROOF,
            )
        return node_id

    def _code(self, run_id: str, node_id: str) -> str:
        key = hashlib.blake2b(
            nats_accounts.keys(self._state).account.encode(), person=b"banyan.node"
        ).digest()
        text = f"{run_id}\0{node_id}".encode()
        return hashlib.blake2b(text, key=key, digest_size=_BYTES).hexdigest()
