"""Random trees of paths that act: cut actions, answers, forks at turns and inside actions."""

from dataclasses import replace

import numpy as np

from banyan.digest import blake
from banyan.environments.receipts import Receipt
from banyan.segment import Finish, Kind, Origin, Sampling, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView
from tests.banyan.environments.test_observation import SEEN

GIVEN = range(30, 40)
"""Token ids that environments alone write."""
_POLICIES = (b"now", b"old", b"older")


class Grown:
    """A tree under growth."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.tree = rng, Tree(rng.bytes(32))
        self.leaves: list[Leaf] = []
        root = Segment(self.tree.tree_id, b"", 0, 0, Kind.PROMPT, rng.integers(0, 6, 3))
        self.tree.add(root)
        for _ in range(int(rng.integers(1, 4))):
            self.path(root, turns=int(rng.integers(0, 4)))

    def path(self, above: Segment, turns: int) -> None:
        """Grow a path behind a segment; it forks behind answers, and sometimes inside actions."""
        last = self.said(above, Finish.TOOL_CALL if turns else Finish.STOP)
        if not turns or self.rng.random() < 0.1:  # at its end, or at an action without an answer
            self.leaves.append(Leaf(last.id, len(last)))
            return
        if len(last) > 1 and self.rng.random() < 0.3:
            inside = self.said(last, Finish.STOP, fork=int(self.rng.integers(1, len(last))))
            self.leaves.append(Leaf(inside.id, len(inside)))
        answer = self.answer(last)
        if answer.finish is not Finish.BOUNDARY:  # the episode is over, or the model is full
            self.leaves.append(Leaf(answer.id, len(answer)))
            return
        for _ in range(int(self.rng.integers(1, 3))):
            self.path(answer, turns - 1)

    def said(self, above: Segment, finish: Finish, fork: int | None = None) -> Segment:
        """Add what the policy says: maybe a forced token, then one or two segments."""
        place = len(above) if fork is None else fork
        if self.rng.random() < 0.3:
            above = self._add(above, place, 1, Kind.FORCED, Finish.BOUNDARY)
            place = len(above)
        if self.rng.random() < 0.3:  # a newer policy goes on where it was cut
            above = self._add(above, place, self._size(), Kind.POLICY, Finish.ABORTED)
            place = len(above)
        return self._add(above, place, self._size(), Kind.POLICY, finish)

    def answer(self, action: Segment) -> Segment:
        """Add an environment's answer."""
        done, full = self.rng.random() < 0.15, self.rng.random() < 0.15
        seen = replace(SEEN, action=action.id, shown=blake(b"ok"), done=bool(done))
        segment = Segment(
            self.tree.tree_id,
            action.id,
            len(action),
            0,
            Kind.TOOL,
            self.rng.integers(GIVEN.start, GIVEN.stop, self._size()),
            finish=Finish.STOP if done else Finish.LENGTH if full else Finish.BOUNDARY,
            receipt=Receipt(seen, b"m" * 32),
            text="ok",
        )
        self.tree.add(segment)
        return segment

    def _size(self) -> int:
        return int(self.rng.integers(1, 5))

    def _add(self, above: Segment, fork: int, size: int, kind: Kind, finish: Finish) -> Segment:
        forced = kind is Kind.FORCED
        segment = Segment(
            self.tree.tree_id,
            above.id,
            fork,
            sum(c.fork == fork for c in self.tree.children.get(above.id, ())),
            kind,
            self.rng.integers(0, 6, size),
            -self.rng.random(size) * 3,
            np.zeros(size) if forced else np.zeros(0),
            origin=Origin.BRANCH if forced else Origin.NONE,
            policy=_POLICIES[int(self.rng.integers(3))],
            sampling=Sampling(temperature=0.8),
            finish=finish,
        )
        self.tree.add(segment)
        return segment


def random_tree(rng: np.random.Generator) -> TreeView:
    """Return a tree whose leaves have rewards, but for a few."""
    made = Grown(rng)
    rewards = {
        leaf: None if rng.random() < 0.1 else float(rng.integers(0, 3)) for leaf in made.leaves
    }
    return TreeView(made.tree, made.leaves, rewards)
