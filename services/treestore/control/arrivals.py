"""A node that begins holds nothing: what the node of its name held before it died is queued again at once."""

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


def arrives(
    connection: Connection, request: rs.PutMemberRequest, now_ms: int, settings: Settings
) -> int:
    """Notes a member as `members.put` does; of one that has started, how many trees it held before are queued again.

    What a node of its name took from the broker and had not claimed as it died, nobody can tell, and the broker waits for
    its answer: all that nobody has claimed falls due. Old tickets claim nothing, so a joined node, which could say at every
    moment that it starts, is not believed this.
    """
    died, member = members.put(connection, request, now_ms), request.member
    if not request.begins:
        return 0
    if died and not member.joined:
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
    return begins(connection, member.run_id, member.node_id, now_ms, settings)


def begins(
    connection: Connection, run_id: str, node_id: str, now_ms: int, settings: Settings
) -> int:
    """Ends the claims of a node that has started, and queues their trees under new tickets; how many.

    Each stays counted as an attempt: a tree on which nodes die is dropped in the end.
    """
    table = schema.trees
    mine = table.c.run_id == run_id, table.c.state == GROWING, table.c.claim_node == node_id
    held = list(connection.scalars(select(table.c.tree_id).where(*mine)))
    if not held:
        return 0
    book = UnitOfWork(now_ms, settings)
    load_trees(connection, book, held)
    for tree_id in held:
        tree = book.change(book.trees[tree_id])
        tree.claim_node, tree.claim_due_ms = "", 0
        assignments.queue(book, tree, spec_of(connection, tree_id))
    flush(connection, book)
    return len(held)
