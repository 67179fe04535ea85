"""Requests of a tree: which segments engines keep for children at their ends."""

from typing import Any

import pytest

from banyan.tree import Tree
from services.rollout.growth.grower import Grower
from tests.rollout.growing import ENDLESS, IID, TREEPO, engine, spec


@pytest.mark.parametrize(
    ("policy", "settings", "kept"),
    [
        (IID, {"width": 2}, [False]),
        (TREEPO, {"segment": 4, "max_depth": 9, "width": 2}, [True, False]),
        (TREEPO, {"segment": 3, "max_depth": 9, "width": 2}, [True, True, False]),
    ],
)
def test_a_segment_is_kept_unless_its_path_may_be_full_at_its_end(
    policy: str, settings: dict[str, Any], kept: list[bool]
) -> None:
    """Paths have eight tokens: the segment that may reach the eighth has no child."""
    scripted = engine(ENDLESS)
    assignment = spec(policy, settings, 8)
    grower = Grower(assignment, Tree(assignment.tree_id), scripted.tokenizer, "test")
    step, found = grower.start(), list[set[bool]]()
    while step.grown is None:
        for request in step.requests:
            scripted.submit(request)
        if step.requests:
            found.append({request.keep for request in step.requests})
        step = grower.ended(scripted.step())
    assert found == [{keep} for keep in kept]
