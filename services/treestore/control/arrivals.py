"""Arrivals: a node that starts holds nothing, so the trees that a dead node of its name held are
queued again.
"""

from sqlalchemy import Connection, select, update

from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control import members
from services.treestore.lifecycle import assignments
from services.treestore.lifecycle.claims import spec_of
from services.treestore.storage import schema
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.load import load_trees
from services.treestore.unit_of_work.rows import GROWING
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush


def record_member(
    connection: Connection, request: rs.PutMemberRequest, now_ms: int, settings: Settings
) -> int:
    """Store a member as `members.put` does; return the number of trees that a starting one held
    before.

    These are queued again at once. The trees that its predecessor took from the broker and had not
        claimed when it died are unknown, and the broker waits for its answers: so all unclaimed
        trees of the run fall due. Old tickets claim nothing. A joined node could pretend at any
        moment that it starts, so it gets none of this second part.
    """
    member = request.member
    was_present = members.put(connection, request, now_ms)
    if not request.begins:
        return 0
    if was_present and not member.joined:
        trees = schema.trees
        unclaimed = (
            (trees.c.run_id == member.run_id)
            & (trees.c.state == GROWING)
            & (trees.c.claim_node == "")
        )
        connection.execute(
            update(trees)
            .where(unclaimed & (trees.c.growth_due_ms > now_ms))
            .values(growth_due_ms=now_ms)
        )
    return end_claims(connection, member.run_id, member.node_id, now_ms, settings)


def end_claims(
    connection: Connection, run_id: str, node_id: str, now_ms: int, settings: Settings
) -> int:
    """End the claims of a node that has started, queue their trees under new tickets, and return
    their number.

    Each claim stays counted as an attempt: a tree on which nodes die is dropped in the end.
    """
    table = schema.trees
    claimed = select(table.c.tree_id).where(
        table.c.run_id == run_id, table.c.state == GROWING, table.c.claim_node == node_id
    )
    tree_ids = list(connection.scalars(claimed))
    if not tree_ids:
        return 0
    work = UnitOfWork(now_ms, settings)
    load_trees(connection, work, tree_ids)
    for tree_id in tree_ids:
        tree = work.change(work.trees[tree_id])
        tree.claim_node, tree.claim_due_ms = "", 0
        assignments.queue(work, tree, spec_of(connection, tree_id))
    flush(connection, work)
    return len(tree_ids)
