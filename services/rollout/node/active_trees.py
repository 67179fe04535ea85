"""The trees that a node holds, and how many more it may take."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from banyan.segment import Segment
from services.chassis.process.telemetry import Span
from services.rollout.clients.messages import Event
from services.rollout.growth.grower import Grower
from services.rollout.growth.spec import GrowSpec
from services.rollout.ports import Delivery


@dataclass(eq=False, slots=True)
class ActiveTree:
    """One tree under one claim of this node."""

    spec: GrowSpec
    grower: Grower
    epoch: int
    delivery: Delivery
    span: Span
    wave: str = ""
    wave_size: int = 0
    since: float = field(default_factory=time.monotonic)
    touched: float = field(default_factory=time.monotonic)
    started: bool = False
    segments: list[Segment] = field(default_factory=list)  # of this claim
    told: list[Event] = field(default_factory=list)  # leaf and grown events of this claim
    grown: asyncio.Event = field(default_factory=asyncio.Event)  # TreeGrown was published
    finishing: bool = False
    awaiting: bool = False  # scores or room

    @property
    def lacks_room(self) -> bool:
        """Whether it has no branches, and none to come before control gives room."""
        return self.started and self.grower.lacks_room

    @property
    def hurries(self) -> bool:
        """Whether its policy goes on by an answer to what it has told."""
        return self.grower.waits or getattr(self.spec.policy, "needs_scores", False)

    @property
    def traceparent(self) -> str:
        """Of its span; of the tree where telemetry is off."""
        return self.span.traceparent or self.spec.traceparent


class Trees:
    """ActiveTree trees by id."""

    def __init__(self, max_branches: int, most_trees: int) -> None:
        self._by_id: dict[bytes, ActiveTree] = {}
        self._max_branches, self._most_trees = max_branches, most_trees
        self._width = 1
        self.grown = 0
        self.changed = asyncio.Event()

    def __iter__(self) -> Iterator[ActiveTree]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, tree_id: bytes, claim: int) -> ActiveTree | None:
        """The tree under that claim."""
        live = self._by_id.get(tree_id)
        return live if live is not None and live.epoch == claim else None

    def holds(self, live: ActiveTree) -> bool:
        """Whether a tree is here still, under the same claim."""
        return self._by_id.get(live.spec.tree_id) is live

    def put(self, live: ActiveTree) -> ActiveTree | None:
        """Holds a tree; the one that it replaces."""
        self._width = max(1, live.spec.width)
        old, self._by_id[live.spec.tree_id] = self._by_id.get(live.spec.tree_id), live
        self.changed.set()
        return old

    def forget(self, live: ActiveTree) -> bool:
        """Lets a tree go, if it is held under this claim."""
        held = self.holds(live)
        if held:
            del self._by_id[live.spec.tree_id]
            live.span.end()
            self.changed.set()
        return held

    @property
    def pending(self) -> list[ActiveTree]:
        """Those that do not grow yet, oldest first."""
        return [live for live in self if not live.started]

    @property
    def growing(self) -> list[ActiveTree]:
        """Those that grow."""
        return [live for live in self if live.started and not live.finishing]

    @property
    def free(self) -> int:
        """Trees to take now: enough to keep every branch busy, with some that wait for those that end. The next ones are
        taken for as wide as the last. Trees that wait for room may wait for those that are not taken yet."""
        used = sum(
            max(1, live.spec.width) for live in self if not (live.finishing or live.lacks_room)
        )
        room = -(-(self._max_branches + self._max_branches // 2 - used) // self._width)
        return max(0, min(room, self._most_trees - len(self)))
