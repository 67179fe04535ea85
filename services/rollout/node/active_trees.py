"""The trees that a node holds, and the number of trees that it may still claim."""

import asyncio
import enum
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from banyan.segment import Segment
from services.chassis.process.telemetry import Span
from services.rollout.clients.messages import Event
from services.rollout.growth.grower import Grower
from services.rollout.growth.spec import GrowSpec
from services.rollout.ports import Delivery


class TreeState(enum.Enum):
    """The state of a tree on its node."""

    PENDING = "pending"  # claimed; its policy or the rest of its wave is missing
    GROWING = "growing"  # branches are in the engine, or a plan is being carried out
    AWAITING = "awaiting"  # begun; scores or a growth budget decide how it goes on
    FINISHING = "finishing"  # being completed or returned


# Times the branches of the engine, also where nearly all wait for answers: a tool that takes seven
# times as long as a turn of the engine leaves it no pause, and other nodes have trees left.
_MOST_HELD = 8
_NEXT = {
    TreeState.PENDING: frozenset({TreeState.GROWING, TreeState.FINISHING}),
    TreeState.GROWING: frozenset({TreeState.AWAITING, TreeState.FINISHING}),
    TreeState.AWAITING: frozenset({TreeState.GROWING, TreeState.FINISHING}),
    TreeState.FINISHING: frozenset[TreeState](),
}


@dataclass(eq=False, slots=True, kw_only=True)
class ActiveTree:
    """A tree under one claim of this node.

    spec: its assignment.
    grower: its growth.
    epoch: epoch of the claim.
    delivery: delivery of the assignment, to acknowledge.
    span: span of the claim.
    wave: name of its wave; empty for none.
    wave_size: number of trees in the wave.
    claimed_at: time of the claim, s, monotonic.
    progressed_at: time of its last progress, s, monotonic.
    segments: segments that were published under this claim.
    events: leaf and grown events that were published under this claim.
    end_published: set once the broker has acknowledged its end of growth.
    """

    spec: GrowSpec
    grower: Grower
    epoch: int
    delivery: Delivery
    span: Span
    wave: str = ""
    wave_size: int = 0
    claimed_at: float = field(default_factory=time.monotonic)
    progressed_at: float = field(default_factory=time.monotonic)
    segments: list[Segment] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    end_published: asyncio.Event = field(default_factory=asyncio.Event)
    _state: TreeState = field(init=False, default=TreeState.PENDING)

    @property
    def state(self) -> TreeState:
        """The state; `enter` changes it."""
        return self._state

    def enter(self, state: TreeState) -> None:
        """Change the state. Raises RuntimeError for a change that is not allowed."""
        if state not in _NEXT[self._state]:
            raise RuntimeError(
                f"tree {self.label} is {self._state.value}: it cannot become {state.value}"
            )
        self._state = state

    @property
    def is_growing(self) -> bool:
        """True if it has begun, and is neither complete nor returned."""
        return self._state in (TreeState.GROWING, TreeState.AWAITING)

    @property
    def is_finishing(self) -> bool:
        """True if it is being completed or returned."""
        return self._state is TreeState.FINISHING

    @property
    def lacks_budget(self) -> bool:
        """True if it has no branches, and gets none before control grants a growth budget."""
        return self.is_growing and self.grower.lacks_budget

    @property
    def load(self) -> int:
        """The branches that it may keep busy, minus those that wait for answers of an environment.

        A tree is as wide as its policy says; of a part of its branches that part counts.
        """
        width, waiting = self.spec.traits.width, len(self.grower.acting)
        if not waiting or not self.is_growing:
            return width
        sampling = len(self.grower.in_flight)
        return math.ceil(width * sampling / (sampling + waiting))

    @property
    def needs_answer(self) -> bool:
        """True if its tree policy waits for scores or a budget in reply to its events."""
        return self.grower.waits or self.spec.traits.needs_scores

    @property
    def label(self) -> str:
        """The beginning of its id, for log lines."""
        return self.spec.tree_id.hex()[:12]

    @property
    def traceparent(self) -> str:
        """The trace context of its span; that of the tree where telemetry is off."""
        return self.span.traceparent or self.spec.traceparent

    def note_progress(self) -> None:
        """Record that the tree has just progressed."""
        self.progressed_at = time.monotonic()


class ActiveTrees:
    """Trees by id, each under its newest claim.

    max_branches: branches that the engine samples side by side.
    most_trees: trees to hold at most.

    Attributes:
    grown: number of trees that were completed here.
    draining: whether the node claims and samples nothing more.
    changed: set when a tree came, went or began to wait or finish, so that others may fit.
    start_due: set when a pending tree may be able to start.
    """

    def __init__(self, max_branches: int, most_trees: int) -> None:
        self._by_id: dict[bytes, ActiveTree] = {}
        self._max_branches, self._most_trees = max_branches, most_trees
        self._width = 1  # of the last tree
        self.grown = 0
        self.draining = False
        self.changed = asyncio.Event()
        self.start_due = asyncio.Event()

    def __iter__(self) -> Iterator[ActiveTree]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, tree_id: bytes, epoch: int) -> ActiveTree | None:
        """Return a tree if it is here under a claim with this epoch."""
        tree = self._by_id.get(tree_id)
        return tree if tree is not None and tree.epoch == epoch else None

    def holds(self, tree: ActiveTree) -> bool:
        """Tell whether a tree is still here under the same claim."""
        return self._by_id.get(tree.spec.tree_id) is tree

    def put(self, tree: ActiveTree) -> ActiveTree | None:
        """Add a tree; return the older claim on it that it replaces."""
        self._width = tree.spec.traits.width
        replaced = self._by_id.get(tree.spec.tree_id)
        self._by_id[tree.spec.tree_id] = tree
        self.changed.set()
        self.start_due.set()
        return replaced

    def remove(self, tree: ActiveTree) -> bool:
        """Remove a tree and end its span; return whether it was here under this claim."""
        if not self.holds(tree):
            return False
        del self._by_id[tree.spec.tree_id]
        tree.span.end()
        self.changed.set()
        return True

    @property
    def pending(self) -> list[ActiveTree]:
        """The trees that have not begun, oldest first."""
        return [tree for tree in self if tree.state is TreeState.PENDING]

    @property
    def growing(self) -> list[ActiveTree]:
        """The trees that have begun and are neither complete nor returned."""
        return [tree for tree in self if tree.is_growing]

    @property
    def unfinished(self) -> list[ActiveTree]:
        """The trees that are neither complete nor returned."""
        return [tree for tree in self if not tree.is_finishing]

    @property
    def free(self) -> int:
        """The number of trees to claim now.

        It is enough to keep every branch busy, and half as many again, which wait for others to
        end. The next trees are taken to be as wide as the last one. Trees that wait for a growth
        budget do not count: they may wait for trees that are not claimed yet. Branches that wait
        for answers do not count either, up to a bound: the engine has nothing to do with them.
        """
        present = [tree for tree in self.unfinished if not tree.lacks_budget]
        used = sum(tree.load for tree in present)
        held = sum(tree.spec.traits.width for tree in present)
        branches = min(
            self._max_branches + self._max_branches // 2 - used,
            _MOST_HELD * self._max_branches - held,
        )
        trees = math.ceil(branches / self._width)
        return max(0, min(trees, self._most_trees - len(self)))
