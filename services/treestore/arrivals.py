"""A node that begins holds nothing: what the node of its name held before it died is queued again at once."""

from sqlalchemy import Connection, select

from services.treestore import growth, schema
from services.treestore.book import Book
from services.treestore.claims import spec_of
from services.treestore.flush import flush
from services.treestore.loading import load_trees
from services.treestore.rows import GROWING
from services.treestore.settings import Settings


def begins(connection: Connection, run_id: str, node_id: str, now_ms: int, settings: Settings) -> int:
    """Ends the claims of a node that has started, and queues their trees under new tickets; how many.

    Each stays counted as an attempt: a tree on which nodes die is dropped in the end.
    """
    table = schema.trees
    mine = table.c.run_id == run_id, table.c.state == GROWING, table.c.claim_node == node_id
    held = list(connection.scalars(select(table.c.tree_id).where(*mine)))
    if not held:
        return 0
    book = Book(now_ms, settings)
    load_trees(connection, book, held)
    for tree_id in held:
        tree = book.change(book.trees[tree_id])
        tree.claim_node, tree.claim_due_ms = "", 0
        growth.queue(book, tree, spec_of(connection, tree_id))
    flush(connection, book)
    return len(held)
