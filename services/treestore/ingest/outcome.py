"""The results of a transaction, for waiters, traces and metrics."""

from dataclasses import dataclass, field

from banyan.v1 import tree_pb2
from services.treestore.unit_of_work.unit_of_work import UnitOfWork


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The results of a transaction.

    touched: trees that changed
    runs: their runs
    traceparents: their traceparents, by tree
    ended: state and reason of each tree that ended
    segments: number of stored segments
    refused: the reason of each refused event
    missing: scorer and reason of each leaf that got no score
    late: number of late scores
    dead: number of dead letters
    recorded: number of events in the outbox
    """

    touched: frozenset[bytes] = frozenset()
    runs: frozenset[str] = frozenset()
    traceparents: dict[bytes, str] = field(default_factory=dict)
    ended: list[tuple[int, str]] = field(default_factory=list)
    segments: int = 0
    refused: list[str] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    late: int = 0
    dead: int = 0
    recorded: int = 0


def outcome(work: UnitOfWork) -> Outcome:
    """Return the results of a transaction that was flushed."""
    trees = {tree_id: work.trees[tree_id] for tree_id in work.touched if tree_id in work.trees}
    return Outcome(
        touched=frozenset(work.touched),
        runs=frozenset(tree.run_id for tree in trees.values()),
        traceparents={tree_id: tree.traceparent for tree_id, tree in trees.items()},
        ended=[(tree.state, tree.reason) for tree in work.ended],
        segments=len(work.new_segments),
        refused=[str(values["reason"]) for values in work.new_refused],
        missing=[
            (str(values["scorer"]), str(values["reason"]))
            for values in work.new_scores
            if values["state"] == tree_pb2.SCORE_STATE_UNSCORABLE
        ],
        late=len(work.new_late),
        dead=len(work.new_dead),
        recorded=len(work.outgoing.rows),
    )
