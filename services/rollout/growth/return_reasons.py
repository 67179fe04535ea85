"""Why a node hands a tree back. The store reads the first word: UNUSABLE ends the tree, all else queues it again."""

from banyan.errors import InvalidInput
from banyan.reasons import Reason
from services.rollout.engines.port import NO_ROOM

DRAIN, POLICY = "drain", "policy"
UNFIT = "UNABLE: the engine of this node does not compute with the policy that it was given"
NO_PLUGIN = (
    Reason.NO_PLUGIN
)  # reason of an InvalidInput: this node lacks the tree policy, another may have it
_HERE_ONLY = frozenset({NO_PLUGIN, NO_ROOM})


def refusal(why: str, code: str) -> str:
    """UNABLE where only this node cannot grow the tree, UNUSABLE where no node ever can."""
    return f"{'UNABLE' if code in _HERE_ONLY else 'UNUSABLE'}: {why}"


def invalid(error: InvalidInput) -> str:
    """The same, of an error."""
    return refusal(str(error), error.reason)


def here(error: Exception) -> str:
    """Of what went wrong on this node while a tree waited: another may do better."""
    return f"UNABLE: {type(error).__name__}: {error}"


def failed(error: Exception) -> str:
    """Of what a tree policy or a chat template raised: both are pure, so they raise it on every node."""
    return (
        f"UNUSABLE: {error}"
        if isinstance(error, InvalidInput)
        else f"UNUSABLE: {type(error).__name__}: {error}"
    )
