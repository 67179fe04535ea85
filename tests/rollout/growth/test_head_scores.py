"""A spec may have every sampled token scored by the head, whatever its tree policy asks for."""

import random

import numpy as np
import pytest

from banyan.segment import Kind
from tests.rollout.growing import ENDING, IID, TREEPO, engine, grow, spec, survivors

SCORED = {**ENDING, "scores": {"": 0.25}}
TREES = [(IID, {"width": 5}), (TREEPO, {"segment": 3, "max_depth": 3, "width": 8})]


@pytest.mark.parametrize(("policy", "settings"), TREES)
def test_each_sampled_token_is_scored_and_the_tree_is_the_same(policy, settings) -> None:
    plain, _ = grow(spec(policy, settings, 9), engine(SCORED))
    heard, _ = grow(spec(policy, settings, 9, head=True), engine(SCORED))
    assert set(heard.tree.segments) == set(plain.tree.segments)
    assert heard.leaves == plain.leaves
    for segment in heard.tree:
        wanted = len(segment) if segment.kind is Kind.POLICY else 0
        assert np.array_equal(segment.signals.head_T, np.full(wanted, 0.25, np.float32))
        assert not len(plain.tree.segments[segment.id].signals.head_T)


def test_a_tree_that_is_resumed_is_scored_to_its_end() -> None:
    assignment = spec(*TREES[1], 9, head=True)
    whole, _ = grow(assignment, engine(SCORED))
    part = survivors(whole.tree, random.Random(3))
    assert len(part.segments) < len(whole.tree.segments)
    resumed, _ = grow(assignment, engine(SCORED), part)
    assert set(resumed.tree.segments) == set(whole.tree.segments)
    sampled = [segment for segment in resumed.tree if segment.kind is Kind.POLICY]
    assert all(len(segment.signals.head_T) == len(segment) for segment in sampled)
