"""The tree that a run's report shows: one whose branches got different credit."""

from collections.abc import Callable, Sequence

from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts

SEARCHED = 8
"""Trees that are read whole in search of it."""

Credits = Callable[[ts.TreeSummary], int]


def taught(
    summaries: Sequence[ts.TreeSummary], credits: Credits
) -> tuple[str, ts.TreeSummary] | None:
    """Return a tree to show, with its title; None if no tree was scored.

    Of the newest few trees of batches whose mean reward is neither the least nor the most that
    there was, it is the one with the most different credits, the newest of equals. If no branch of
    these got another credit than its siblings, or none is known, it is the newest tree of a batch.
    Before any batch it is the newest scored tree: one that is dropped, or waits, taught nothing.

    summaries: newest first
    credits: returns how many different advantages a tree's branches have
    """
    scored = [summary for summary in summaries if summary.HasField("mean_reward")]
    if not scored:
        return None
    consumed = [s for s in scored if s.state == tree_pb2.TREE_STATE_CONSUMED]
    if not consumed:
        return "the newest tree", scored[0]
    low, high = (pick(summary.mean_reward for summary in consumed) for pick in (min, max))
    between = [summary for summary in consumed if low < summary.mean_reward < high] or consumed
    counts = [(credits(summary), summary) for summary in between[:SEARCHED]]
    most = max(count for count, _ in counts)
    if most < 2:
        return "the newest tree", consumed[0]
    return "a tree that it learned from", next(s for count, s in counts if count == most)
