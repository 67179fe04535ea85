"""Credits with the rewards that scorers gave, for metrics of a batch whose advantages have others.

Where a loss subtracts a KL from rewards, no two rewards of a group are equal and no answer has a
reward of 1 any more. What a run reports of its rewards must not depend on that. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from banyan.credit.estimate import Credit, ScoredTree
from banyan.tree import Leaf
from banyan.view import TreeView

Groups = Sequence[tuple[str, Sequence[ScoredTree]]]


def as_scored(credits: Sequence[Credit], scored: Groups, penalised: Groups) -> list[Credit]:
    """Return the credits with the rewards of the leaves that take part as they were scored.

    scored: the batch's groups as scored
    penalised: the same groups as advantages were estimated from; the trees themselves if nothing
        was subtracted
    """
    before, after = (
        [tree for _, trees in groups for tree in trees] for groups in (scored, penalised)
    )
    if all(one is other for one, other in zip(before, after, strict=True)):
        return list(credits)
    rewards = {leaf: reward for tree in before for leaf, reward in tree.rewards.items()}
    return [
        replace(
            credit,
            group=replace(
                credit.group, trees=[_seen(view, rewards) for view in credit.group.trees]
            ),
        )
        for credit in credits
    ]


def _seen(view: TreeView, rewards: Mapping[Leaf, float | None]) -> TreeView:
    leaves = (view.leaves_L[index] for index in view.scored_L)
    return TreeView(view.tree, view.leaves_L, {leaf: rewards[leaf] for leaf in leaves}, view.facts)
