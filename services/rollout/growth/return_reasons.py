"""Reasons for which a node returns a tree to the store.

The store reads the first word: UNUSABLE ends the tree, any other queues it again
(docs/protocol.md, Attempts, returns and drains).
"""

from banyan.errors import InvalidInput, with_kind
from banyan.reasons import Reason
from banyan.text.printable import encodable
from services.rollout.engines.port import NO_ROOM

DRAIN, POLICY = "drain", "policy"
UNFIT = "UNABLE: the engine of this node does not compute with the policy that it was given"
NO_ENVIRONMENT = "UNABLE: this node reaches no verifier, which answers actions"
NO_PLUGIN = Reason.NO_PLUGIN  # reason of an InvalidInput: this node lacks the tree policy
_THIS_NODE_ONLY = frozenset({NO_PLUGIN, NO_ROOM})
_MOST_CHARACTERS = 4000  # an error may quote all that a model or a user's code wrote


def refusal(message: str, code: str) -> str:
    """Return UNABLE if only this node cannot grow the tree, UNUSABLE if no node ever can."""
    return _sendable(f"{'UNABLE' if code in _THIS_NODE_ONLY else 'UNUSABLE'}: {message}")


def invalid(error: InvalidInput) -> str:
    """Return the reason for an error in the spec of a tree."""
    return refusal(str(error), error.reason)


def refused(rule: str) -> str:
    """Return the reason for a segment that the store refused by a rule.

    A path that is too long for the model is that on every node: answers of environments count.
    """
    if rule != Reason.PATH_TOO_LONG:
        return f"REFUSED: {rule}"
    return (
        f"UNUSABLE: {rule}: a path with its prompt and answers is longer than the model's context;"
        " lower environment.answer_chars, environment.turns or generate.max_new_tokens"
    )


def here(error: Exception) -> str:
    """Return the reason for an error of this node; the tree may grow on another one."""
    return _sendable(f"UNABLE: {with_kind(error)}")


def failed(error: Exception) -> str:
    """Return the reason for an error of a tree policy or a chat template.

    Both are pure functions, so they raise it on every node.
    """
    return _sendable(f"UNUSABLE: {error if isinstance(error, InvalidInput) else with_kind(error)}")


def _sendable(reason: str) -> str:
    """Return the beginning of a reason, as a message can carry it."""
    cut = reason if len(reason) <= _MOST_CHARACTERS else f"{reason[:_MOST_CHARACTERS]}…"
    return encodable(cut)
