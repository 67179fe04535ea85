"""Runs and trees as typed, frozen objects, read from a state folder or from a running system.

    with banyan.open(".banyan") as store:
        for tree in store.run().trees():
            print(tree.tree_id, tree.mean_reward)

Ids are hex texts, enums are names, times are datetimes in UTC, and numbers by token are read-only
NumPy arrays. Nothing is read before it is asked for, and long lists come in pages.
"""

from banyan.stored.evaluation import Evaluation
from banyan.stored.lineage import Batch, Lineage
from banyan.stored.run import Member, Run
from banyan.stored.segment import Leaf, Policy, Score, Segment
from banyan.stored.store import Store, open_store
from banyan.stored.summary import TreeSummary
from banyan.stored.tree import NodeCredit, Tree

__all__ = [
    "Batch",
    "Evaluation",
    "Leaf",
    "Lineage",
    "Member",
    "NodeCredit",
    "Policy",
    "Run",
    "Score",
    "Segment",
    "Store",
    "Tree",
    "TreeSummary",
    "open_store",
]
