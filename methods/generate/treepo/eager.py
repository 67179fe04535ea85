"""treepo-eager: treepo's trees of segments without waves, so no path waits for another.

Paper: after Li et al. 2025, TreePO, arXiv 2508.17445
Formula: a path that owes q leaves branches min(d, q) times, in equal shares
Left out: transfer of budget between siblings, and weights by log-prob

Every path owes a share of the tree's W leaves; the prompt owes all. A path that owes q leaves
branches min(d, q) times, in equal shares, the last one with the remainder: the prompt at the start,
and a path at once when its segment has ended and it goes on. A path that ends is one leaf. The rest
of its share starts again at once, in the same way, from the place where it is cut, or from the
prompt if its end was neither the end token nor finished, as treepo's fallback does. So there are
exactly W leaves.

While no path ends early the tree is that of treepo. Else treepo gives the share of an ended path to
its siblings, for which it must know them all; here it stays with the path, so that the tree does
not depend on the order in which segments end. There are no weights by log-prob, as there is no wave
to compare. A branch's ordinal is the number of the first leaf that it owes: no two branches at a
place owe the same one.
"""

from dataclasses import dataclass

from banyan.plugins import Branch
from banyan.segment import Segment
from banyan.tree import Leaf
from methods.generate.coroutine_policy import Growth
from methods.generate.treepo import budget
from methods.generate.treepo.segmented import Paths, Segmented


@dataclass(frozen=True)
class TreePOEager(Segmented):
    """Segment-wise tree sampling with shares that go down the tree."""

    async def grow(self, growth: Growth) -> None:
        """Grow every segment that follows from the existing ones."""
        root, width = growth.view.root, growth.width(self.width)
        if width:
            _Shares(growth, Paths(self, growth.view)).branch(root, len(root), 0, range(width))


@dataclass(frozen=True, slots=True)
class _Shares:
    """Paths of one tree, each with a branch, the policy tokens before it, and the leaves it
    owes."""

    growth: Growth
    paths: Paths

    def branch(self, parent: Segment, fork: int, tokens: int, owed: range) -> None:
        """Share the owed leaves among new branches."""
        first = owed.start
        for share in budget.split(len(owed), None, min(self.paths.policy.divisor, len(owed))):
            self.growth.start(
                self.path(Branch(parent.id, fork, first), tokens, range(first, first + share))
            )
            first += share

    async def path(self, branch: Branch, tokens: int, owed: range) -> None:
        """Sample the segment of a branch, and share its leaves among its successors."""
        run = await self.growth.run(self.paths.expansion(branch, tokens))
        tokens += len(run)
        reason = self.paths.ending(run, tokens)
        if reason is None:
            self.branch(run.last, len(run.last), tokens, owed)
            return
        self.growth.mark(run.leaf, reason)
        if len(owed) > 1:
            self.branch(*self._start(run.leaf, reason, owed[1]), owed[1:])

    def _start(self, leaf: Leaf, reason: str, number: int) -> tuple[Segment, int, int]:
        """Return the start of the leaves that an ended path still owes.

        It is a segment, a fork in it, and the number of policy tokens before.
        """
        if reason in ("finished", "stop"):
            return self.paths.cut(leaf, self.growth.rng, number)
        return self.growth.view.root, len(self.growth.view.root), 0
