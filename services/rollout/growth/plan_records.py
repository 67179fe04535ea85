"""Plans that are too large for one record: split into records, and joined again.

The parts of a plan have consecutive numbers and name the same view. All but the last have `more`
set. The first has what applies to the view as a whole, the last whether the tree is done.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from banyan.v1 import tree_pb2

_FRAME = 128  # bytes of a part beside the items of its lists
_LISTS = ("segments", "gone", "found", "expansions", "leaves", "prunes", "rewards", "dropped")


def parts(plan: tree_pb2.PlanRecord, max_bytes: int) -> list[tree_pb2.PlanRecord]:
    """Return a plan as records of at most `max_bytes`; a larger item has a record of its own."""
    if plan.ByteSize() <= max_bytes:
        return [plan]
    first = tree_pb2.PlanRecord(room_lapsed=plan.room_lapsed)
    if plan.HasField("room"):
        first.room.CopyFrom(plan.room)
    records = [first]
    size = first.ByteSize() + _FRAME
    for name in _LISTS:
        for item in getattr(plan, name):
            cost = _bytes(item)
            if size > _FRAME and size + cost > max_bytes:
                records.append(tree_pb2.PlanRecord())
                size = _FRAME
            getattr(records[-1], name).append(item)
            size += cost
    for index, record in enumerate(records):
        record.claim_epoch = plan.claim_epoch
        record.number = plan.number + index
        record.view_digest = plan.view_digest
        record.more = index + 1 < len(records)
    records[-1].done = plan.done
    return records


def plans(records: Iterable[tree_pb2.PlanRecord]) -> Iterator[tree_pb2.PlanRecord]:
    """Yield the plans of one claim's records, each as a whole.

    A plan without its last part, and the mark of a full log, are left out.
    """
    whole = tree_pb2.PlanRecord()
    has_begun = False
    for record in records:
        if record.full:
            return
        number = whole.number if has_begun else record.number
        whole.MergeFrom(record)
        whole.number, whole.more = number, False
        has_begun = record.more
        if not has_begun:
            yield whole
            whole = tree_pb2.PlanRecord()


def _bytes(item: Any) -> int:
    """Return the bytes of an item in its list, with tag and length."""
    return 8 + (len(item) if isinstance(item, bytes) else item.ByteSize())
