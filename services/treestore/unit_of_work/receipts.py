"""The rule that an answer of an environment is one: a TOOL segment stands behind the action that it
answers, and a verifier's receipt proves it (docs/protocol.md, Environments). Pure.
"""

from banyan.digest import blake
from banyan.environments.receipts import Receipt
from banyan.reasons import Reason
from banyan.segment import Finish, Kind, Segment
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
    return ""


def _proves(key: bytes, run_id: str, segment: Segment, receipt: Receipt) -> bool:
    says = receipt.observation.shown == blake(segment.text.encode())
    return says and receipt.proves(key, run_id, segment.tree_id, segment.parent)
