"""treepo-eager: treepo's trees of segments, without waves: no path waits for another (after Li et al. 2025; card 2).

Every path owes a share of the tree's W leaves; the prompt owes all. What owes q leaves branches min(d, q) times, in equal
shares, the last one with the remainder: the prompt at the start, and a path at once when its segment has ended and it goes
on. A path that ends is one leaf. The rest of its share starts again at once, in the same way, from where it is cut, or from
the prompt if its end was neither the end token nor finished, as treepo's fallback does. So there are exactly W leaves.

While no path ends early the tree is that of treepo. Else treepo gives the share of what ended to its siblings, for which
it must know them all; here it stays with the path, so that the tree does not depend on which segment ended first. There
are no weights by log-prob, as there is no wave to compare. A branch's ordinal is the number of the first leaf that it owes:
no two branches at a place owe the same one.
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
        """Every segment that follows from what is there."""
        root, width = growth.view.root, growth.width(self.width)
        if width:
            _Shares(growth, Paths(self, growth.view)).branch(root, len(root), 0, range(width))


@dataclass(frozen=True, slots=True)
class _Shares:
    """The paths of one tree, each from its branch: where, behind how many policy tokens, and the leaves that it owes."""

    growth: Growth
    paths: Paths

    def branch(self, parent: Segment, fork: int, tokens: int, owed: range) -> None:
        """Shares the owed leaves out among new branches."""
        first = owed.start
        for share in budget.split(len(owed), None, min(self.paths.policy.divisor, len(owed))):
            self.growth.start(
                self.path(Branch(parent.id, fork, first), tokens, range(first, first + share))
            )
            first += share

    async def path(self, branch: Branch, tokens: int, owed: range) -> None:
        """Shares out what follows from the segment of a branch."""
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
        """Where the leaves that an ended path still owes start: a segment, a fork in it, the policy tokens before."""
        if reason in ("finished", "stop"):
            return self.paths.cut(leaf, self.growth.rng, number)
        return self.growth.view.root, len(self.growth.view.root), 0
