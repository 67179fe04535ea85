"""Caps the groups that a step trains on: TreePO's group filter (arXiv 2508.17445). Pure.

A batch is opened with more groups than a step needs. Of those that teach the first are trained on,
in the batch's order; which ones come first does not depend on how long they took.
"""

from collections.abc import Sequence
from dataclasses import replace

from banyan.credit.estimate import Credit
from banyan.credit.group import nothing

BEYOND = "beyond the groups that a step trains on"


def capped(credits: Sequence[Credit], most: int) -> list[Credit]:
    """Skip the groups that teach beyond the first `most`; return all unchanged for 0."""
    if not most:
        return list(credits)
    kept: list[Credit] = []
    taught = 0
    for credit in credits:
        teaches = not credit.advantages.skip
        if teaches and taught >= most:
            credit = replace(credit, advantages=nothing(credit.group, BEYOND))
        taught += teaches
        kept.append(credit)
    return kept
