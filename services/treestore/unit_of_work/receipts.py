"""The rules that an answer of an environment is one: a TOOL segment stands behind the action that
it answers, a verifier's receipt proves it, and its end and tokens are what the receipt's text and
the tree's renderer make of it (docs/protocol.md, Environments). Pure.
"""

from collections.abc import Mapping

from banyan.digest import blake
from banyan.environments.receipts import Receipt
from banyan.reasons import Reason
from banyan.segment import Finish, Kind, Segment
from services.chassis.renderers.stored import Bridge
from services.treestore.storage.tokens import path_tokens
from services.treestore.storage.tokens.path_tokens import SegmentTokens
from services.treestore.unit_of_work.rows import SegmentHeader


def broken_rule(key: bytes, run_id: str, segment: Segment, *, above: SegmentHeader | None) -> str:
    """Return the rule about actions and answers that a segment breaks; empty if it breaks none.

    key: key of receipts of this system
    above: its parent
    """
    at_action = (
        above is not None and above.finish == Finish.TOOL_CALL and segment.fork == above.length
    )
    if segment.kind is not Kind.TOOL:
        # Only the environment may answer an action; forks inside it are free.
        return Reason.ANSWER_NOT_THEIRS if at_action else ""
    if not at_action or segment.ordinal != 0:
        return Reason.ANSWER_MISPLACED
    receipt = segment.receipt
    if receipt is None or not _proves(key, run_id, segment, receipt):
        return Reason.RECEIPT_FALSE
    ends = (Finish.STOP,) if receipt.observation.done else (Finish.BOUNDARY, Finish.LENGTH)
    return "" if segment.finish in ends else Reason.ANSWER_END_FALSE


def _proves(key: bytes, run_id: str, segment: Segment, receipt: Receipt) -> bool:
    says = receipt.observation.shown == blake(segment.text.encode())
    return says and receipt.proves(key, run_id, segment.tree_id, segment.parent)


def broken_rendering(
    segment: Segment,
    *,
    bridge: Bridge | None,
    segments: Mapping[bytes, SegmentTokens],
    room: int,
    longest_path: int,
) -> str:
    """Return the rule about its tokens that a proven answer breaks; empty if it breaks none.

    bridge: renders answers of its tree; None if nothing here does
    segments: by id, with all of the path to the answer
    room: tokens that the policy may still say on the path; 0 ends it
    longest_path: tokens of a path that the model takes, by the tree's spec; 0 for any number
    """
    if bridge is None:
        return Reason.SPEC_UNUSABLE
    context_T, action_T = path_tokens.split(segments, segment.parent, segment.fork)
    ids = bridge.bridge(context_T.tolist(), action_T.tolist(), segment.text)
    tokens = segment.tokens_T.tolist()
    before = len(context_T) + len(action_T)
    is_full = 0 < longest_path <= before + len(tokens)
    # Where the model's positions end, the beginning of an answer is all that there is room for.
    if ids is None or tokens != (ids[: len(tokens)] if is_full else ids):
        return Reason.ANSWER_TOKENS_FALSE
    goes_on = room > 0 and not is_full
    expected = (Finish.STOP, Finish.BOUNDARY if goes_on else Finish.LENGTH)
    return "" if segment.finish in expected else Reason.ANSWER_END_FALSE
