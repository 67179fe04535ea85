"""Assignments: GrowTree messages that queue trees. Each has the tree's next ticket, and older
tickets claim nothing.
"""

from banyan.v1 import events_pb2, tree_pb2
from services.chassis.messaging import subjects
from services.treestore.unit_of_work.rows import TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

_MAX_DOUBLINGS = 5


def queue(work: UnitOfWork, tree: TreeRow, spec: tree_pb2.TreeSpec) -> None:
    """Record a GrowTree, and plan the next one for the case that no node claims the tree."""
    tree.ticket += 1
    doublings = min(tree.ticket - 1, _MAX_DOUBLINGS)
    tree.growth_due_ms = work.now_ms + (work.settings.requeue_ms << doublings)
    work.change(tree)
    message = events_pb2.GrowTree(
        run_id=tree.run_id,
        tree_id=tree.tree_id,
        min_step=spec.min_step,
        wave=spec.wave,
        wave_size=spec.wave_size,
        ticket=tree.ticket,
    )
    msg_id = f"grow-{tree.tree_id.hex()}-{tree.ticket}"
    work.outgoing.record(subjects.growth(tree.run_id), msg_id, message, spec.traceparent)
