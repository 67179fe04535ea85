"""Plans that are too large for one record: their parts as records, and plans again from records.

The parts of a plan are numbered one after the other and name the same view. All but the last say that there is more; the
first has what is said once of a view, the last whether the tree is done.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from banyan.v1 import tree_pb2

_FRAME = 128  # bytes of a part beside its lists' items
_LISTS = ("segments", "gone", "found", "expansions", "leaves", "prunes", "rewards", "dropped")


def parts(plan: tree_pb2.PlanRecord, most: int) -> list[tree_pb2.PlanRecord]:
    """A plan as records of at most so many bytes; an item that alone is larger has a record of its own."""
    if plan.ByteSize() <= most:
        return [plan]
    head = tree_pb2.PlanRecord(room_lapsed=plan.room_lapsed)
    if plan.HasField("room"):
        head.room.CopyFrom(plan.room)
    made, size = [head], head.ByteSize() + _FRAME
    for name in _LISTS:
        for item in getattr(plan, name):
            cost = _bytes(item)
            if size > _FRAME and size + cost > most:
                made.append(tree_pb2.PlanRecord())
                size = _FRAME
            getattr(made[-1], name).append(item)
            size += cost
    for at, part in enumerate(made):
        part.claim_epoch, part.number, part.view_digest = (
            plan.claim_epoch,
            plan.number + at,
            plan.view_digest,
        )
        part.more = at + 1 < len(made)
    made[-1].done = plan.done
    return made


def plans(records: Iterable[tree_pb2.PlanRecord]) -> Iterator[tree_pb2.PlanRecord]:
    """The plans of one claim's records, each whole. What lacks its last part, and the mark of a full log, are left out."""
    whole = tree_pb2.PlanRecord()
    begun = False
    for record in records:
        if record.full:
            return
        number = whole.number if begun else record.number
        whole.MergeFrom(record)
        whole.number, whole.more, begun = number, False, record.more
        if not begun:
            yield whole
            whole = tree_pb2.PlanRecord()


def _bytes(item: Any) -> int:
    """What an item takes in its list, with tag and length."""
    return 8 + (len(item) if isinstance(item, bytes) else item.ByteSize())
