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

from dataclasses import dataclass, field

from banyan.draws import Draws
from banyan.plugins import Branch, Expansion, GrowthView, LeafMark, Plan, Room
from banyan.segment import Segment
from banyan.tree import Leaf
from services.rollout.generate import budget
from services.rollout.generate.cuts import continuations, run_at
from services.rollout.generate.segmented import Paths, Segmented


@dataclass(frozen=True)
class TreePOEager(Segmented):
    """Segment-wise tree sampling with shares that go down the tree."""

    def plan(self, view: GrowthView, room: Room, rng: Draws) -> Plan:
        """Every segment that follows from what is there."""
        width = self.width if room.max_leaves is None else min(self.width, room.max_leaves)
        replay = _Replay(self, view, rng, Paths(self, view))
        if width:
            replay.branch(view.root, len(view.root), 0, range(width))
        while replay.owing:
            replay.advance(*replay.owing.pop())
        return Plan((*replay.expansions, *continuations(view)), tuple(replay.marks), done=len(replay.marks) == width)


@dataclass(slots=True)
class _Replay:
    """The paths of one tree, each from its branch: where, behind how many policy tokens, and the leaves that it owes."""

    policy: TreePOEager
    view: GrowthView
    rng: Draws
    paths: Paths
    owing: list[tuple[Branch, int, range]] = field(default_factory=list)
    expansions: list[Expansion] = field(default_factory=list)
    marks: list[LeafMark] = field(default_factory=list)

    def branch(self, parent: Segment, fork: int, tokens: int, owed: range) -> None:
        """Shares the owed leaves out among new branches."""
        first = owed.start
        for share in budget.split(len(owed), None, min(self.policy.divisor, len(owed))):
            self.owing.append((Branch(parent.id, fork, first), tokens, range(first, first + share)))
            first += share

    def advance(self, branch: Branch, tokens: int, owed: range) -> None:
        """Shares out what follows from the segment of a branch; asks for it if it is not there."""
        run = run_at(self.view, branch)
        if run is None:
            self.expansions.append(self.paths.expansion(branch, tokens))
            return
        tokens, leaf = tokens + len(run), Leaf(run.last.id, len(run.last))
        reason = self.paths.ending(run, leaf, tokens)
        if reason is None:
            self.branch(run.last, len(run.last), tokens, owed)
            return
        self.marks.append(LeafMark(leaf, reason))
        if len(owed) > 1:
            self.branch(*self._start(leaf, reason, owed[1]), owed[1:])

    def _start(self, leaf: Leaf, reason: str, number: int) -> tuple[Segment, int, int]:
        """Where the leaves that an ended path still owes start: a segment, a fork in it, the policy tokens before."""
        if reason in ("finished", "stop"):
            return self.paths.cut(leaf, self.rng, number)
        return self.view.root, len(self.view.root), 0
