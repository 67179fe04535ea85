"""Metrics of trees' shapes, on trees made by hand."""

import numpy as np
import pytest

from banyan.segment import Finish, Kind, Origin, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from services.learner.data import tree_metrics
from services.learner.data.tree_metrics import discarded, kv_tokens


class Made:
    """A tree that begins with a prompt of three tokens."""

    def __init__(self) -> None:
        self.tree = Tree(b"t" * 32)
        self.root = self.add(None, 0, 3, Kind.PROMPT)

    def add(
        self,
        parent: Segment | None,
        fork: int,
        length: int,
        kind: Kind = Kind.POLICY,
        finish: Finish = Finish.BOUNDARY,
        origin: Origin = Origin.NONE,
    ) -> Segment:
        """Add a segment below the first `fork` tokens of another."""
        above = parent.id if parent is not None else b""
        made = Segment(
            self.tree.tree_id,
            above,
            fork,
            len(self.tree.children.get(above, [])),
            kind,
            np.arange(length, dtype=np.int32),
            np.zeros(0 if kind is Kind.PROMPT else length, np.float32),
            finish=finish,
            origin=origin,
        )
        self.tree.add(made)
        return made

    def metrics(self, *ends: Segment) -> dict[str, float]:
        """Return the metrics with these leaves."""
        leaves = [Leaf(end.id, len(end)) for end in ends]
        return tree_metrics.of_views([TreeView(self.tree, leaves, dict.fromkeys(leaves, 1.0))])


def test_forks_candidates_and_ends_that_are_no_leaves_are_counted() -> None:
    made = Made()
    kept = made.add(made.root, 3, 4)
    made.add(made.root, 3, 5)  # a candidate that does not go on
    leaves = [made.add(kept, 4, 2, finish=Finish.STOP) for _ in range(2)]
    found = made.metrics(*leaves)
    assert found["forks"] == 1 and found["ends_discarded"] == 1
    assert found["kv_tokens"] == 3 + 4 + 5, "both candidates of depth 1 below one prompt"
    assert found["repairs"] == found["repairs_taken"] == 0


def test_independent_samples_fork_nowhere_and_hold_no_candidates() -> None:
    made = Made()
    found = made.metrics(*(made.add(made.root, 3, 4, finish=Finish.STOP) for _ in range(2)))
    assert not any(found.values())


def test_a_segment_that_a_new_policy_cut_is_no_depth_of_its_own() -> None:
    made = Made()
    cut = made.add(made.root, 3, 4, finish=Finish.ABORTED)
    rest = made.add(cut, 4, 2)
    beside = made.add(made.root, 3, 5)
    ends = [made.add(above, len(above), 1, finish=Finish.STOP) for above in (rest, beside)]
    leaves = [Leaf(end.id, 1) for end in ends]
    assert kv_tokens(made.tree, leaves) == 3 + 4 + 2 + 5
    assert discarded(made.tree, leaves) == 0


@pytest.mark.parametrize("taken", [True, False])
def test_repairs_are_counted_and_those_that_took_a_place(taken: bool) -> None:
    made = Made()
    failed = made.add(made.root, 3, 4, finish=Finish.STOP)
    step = made.add(failed, 2, 1, Kind.FORCED, Finish.BOUNDARY, Origin.TEACHER)
    end = made.add(step, 1, 2, finish=Finish.STOP)
    found = made.metrics(end if taken else failed)
    assert found["repairs"] == 1 and found["repairs_taken"] == taken
    assert found["ends_discarded"] == 1


def test_a_batch_without_trees_has_none() -> None:
    assert tree_metrics.of_views([]) == {}
