"""Metrics of what environments answered, from the receipts of a batch's paths. Pure.

docs/metrics.md has the formula of each. Batches whose paths do not act have none.
"""

from collections.abc import Sequence

from banyan.environments.observation import Observation, ToolOutcome
from banyan.segment import Finish, Kind, Segment
from banyan.tree import Leaf
from banyan.view import TreeView

Metrics = dict[str, float]


def of_views(views: Sequence[TreeView]) -> Metrics:
    """Return shares of answers, each counted once, and of leaves."""
    leaves = [(view, leaf) for view in views for leaf in view.leaves_L]
    answers = [seen for view in views for seen in _observations(view)]
    unanswered = sum(is_unanswered(view, leaf) for view, leaf in leaves)
    if not answers and not unanswered:
        return {}
    used_up = sum(has_used_up_turns(view, leaf) for view, leaf in leaves)
    shares = {
        "turns_per_path": sum(_turns(view, leaf) for view, leaf in leaves) / len(leaves),
        "turns_used_up_share": used_up / len(leaves),
        "unanswered_share": unanswered / len(leaves),
    }
    return shares | (_of_answers(answers) if answers else {})


def _of_answers(answers: Sequence[Observation]) -> Metrics:
    malformed = sum(seen.outcome is ToolOutcome.MALFORMED for seen in answers)
    well = sum(seen.outcome is ToolOutcome.OK for seen in answers)
    return {
        "calls_malformed_share": malformed / len(answers),
        "calls_failed_share": (len(answers) - malformed - well) / len(answers),
        "answers_cut_share": sum(seen.cut for seen in answers) / len(answers),
    }


def _observations(view: TreeView) -> list[Observation]:
    answers = {node.segment.id: node.segment for node in view.nodes if is_answer(node.segment)}
    return [s.receipt.observation for s in answers.values() if s.receipt is not None]


def is_answer(segment: Segment) -> bool:
    """Return whether an environment gave a segment."""
    return segment.kind is Kind.TOOL


def _turns(view: TreeView, leaf: Leaf) -> int:
    return sum(is_answer(segment) for segment in view.tree.lineage(leaf.segment))


def is_unanswered(view: TreeView, leaf: Leaf) -> bool:
    """Return whether a path ended at an action that got no answer."""
    last = view.tree.segments[leaf.segment]
    return last.finish is Finish.TOOL_CALL and leaf.end == len(last)


def has_used_up_turns(view: TreeView, leaf: Leaf) -> bool:
    """Return whether a path ended at an action that would have been one too many."""
    return ends_at_its_action(view, leaf) and _turns(view, leaf) >= view.facts.turns


def ends_at_its_action(view: TreeView, leaf: Leaf) -> bool:
    """Return whether a path ended because of an action that is not answered: its turns are used
    up, or no turn can follow.

    Such a segment ends with LENGTH, though it and the model had room for more tokens.
    """
    last, longest = view.tree.segments[leaf.segment], view.facts.longest_path
    ended = last.finish is Finish.LENGTH and leaf.end == len(last)
    short = len(last) < last.sampling.max_new_tokens
    full = 0 < longest <= view.tree.prefix_length(leaf.segment, leaf.end)
    acts = view.facts.turns > 0 and last.kind is Kind.POLICY
    return acts and ended and short and not full
