"""Queues trees for growing. Each GrowTree has the tree's next ticket: an older one claims nothing any more."""

from banyan.v1 import events_pb2, tree_pb2
from services.chassis.messaging import subjects
from services.treestore.unit_of_work.rows import TreeRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

_DOUBLINGS = 5


def queue(book: UnitOfWork, tree: TreeRow, spec: tree_pb2.TreeSpec) -> None:
    """Puts a GrowTree into the outbox, and plans the next for when nobody claims the tree."""
    tree.ticket += 1
    tree.growth_due_ms = book.now_ms + (
        book.settings.requeue_ms << min(tree.ticket - 1, _DOUBLINGS)
    )
    book.change(tree)
    message = events_pb2.GrowTree(
        run_id=tree.run_id,
        tree_id=tree.tree_id,
        min_step=spec.min_step,
        wave=spec.wave,
        wave_size=spec.wave_size,
        ticket=tree.ticket,
    )
    book.say(
        subjects.growth(tree.run_id),
        f"grow-{tree.tree_id.hex()}-{tree.ticket}",
        message,
        spec.traceparent,
    )
