"""Metrics of the shapes of a batch's trees: what their tree policies did. Pure.

docs/metrics.md has the formula of each. They count whole trees, the branches that became no leaf
among them.
"""

from collections.abc import Sequence

from banyan.payoff.tokens import forks
from banyan.segment import Finish, Kind, Origin, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView

Metrics = dict[str, float]


def of_views(views: Sequence[TreeView]) -> Metrics:
    """Return the counts of a batch's own trees; none without a tree."""
    if not views:
        return {}
    trees = [view.tree for view in views]
    repairs = [(view, segment) for view in views for segment in view.tree if _is_repair(segment)]
    taken = sum(segment.id in _on_paths(view.tree, view.leaves_L) for view, segment in repairs)
    return {
        "forks": float(sum(map(forks, trees))),
        "ends_discarded": float(sum(discarded(view.tree, view.leaves_L) for view in views)),
        "repairs": float(len(repairs)),
        "repairs_taken": float(taken),
        "kv_tokens": sum(kv_tokens(view.tree, view.leaves_L) for view in views) / len(views),
    }


def discarded(tree: Tree, leaves: Sequence[Leaf]) -> int:
    """Return the ends of sampled paths that are no leaves: rollouts that were stopped, candidates
    that were not kept, samples that a repair replaced."""
    gone_on = {segment.parent for segment in tree if _is_at_end(tree, segment)}
    taken = gone_on | {leaf.segment for leaf in leaves}
    return sum(segment.kind is Kind.POLICY and segment.id not in taken for segment in tree)


def kv_tokens(tree: Tree, leaves: Sequence[Leaf]) -> int:
    """Return the memory of a search that holds all paths of one depth: the tokens of the segments
    on the paths to that depth's candidates, prompt included, each once, summed over depths.

    A candidate is the end of a step that ends no path (Hooper et al. 2025, ETS, arXiv 2502.13575).
    A segment that a change of the policy cut is no step of its own.
    """
    ends, depths = {leaf.segment for leaf in leaves}, dict[bytes, int]()
    held: dict[int, dict[bytes, int]] = {}
    for segment in tree:
        above = tree.segments.get(segment.parent)
        goes_on = above is not None and above.finish is Finish.ABORTED
        depths[segment.id] = depths.get(segment.parent, -1) + (not goes_on)
        is_candidate = segment.kind is Kind.POLICY and segment.finish is not Finish.ABORTED
        if is_candidate and segment.id not in ends:
            lengths = held.setdefault(depths[segment.id], {})
            for part, end in tree.pieces(segment.id, len(segment)):
                lengths[part.id] = max(end, lengths.get(part.id, 0))
    return sum(sum(lengths.values()) for lengths in held.values())


def _is_at_end(tree: Tree, segment: Segment) -> bool:
    """Return whether a segment continues the whole of its parent."""
    return bool(segment.parent) and segment.fork == len(tree.segments[segment.parent])


def _is_repair(segment: Segment) -> bool:
    return segment.kind is Kind.FORCED and segment.origin is Origin.TEACHER


def _on_paths(tree: Tree, leaves: Sequence[Leaf]) -> set[bytes]:
    return {segment.id for leaf in leaves for segment in tree.lineage(leaf.segment)}
