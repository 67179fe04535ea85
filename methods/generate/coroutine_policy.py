"""Tree policies as processes: they ask for segments and wait for them, so that a plan costs what is new (ADR 019).

A policy's `grow` runs until what it waits for is not there yet. Begun anew on a recorded tree it comes as far as the tree
does: that is its `plan`. Left waiting, it goes on when a segment comes: that is its `planner`. Both come to the same, as a
process knows nothing but what it waited for. So its parts must share nothing in which the order of their ends shows.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

from banyan.draws import Draws
from banyan.plugins import (
    NOTHING_NEW,
    Branch,
    Expansion,
    GrowthBudget,
    GrowthView,
    LeafMark,
    News,
    Plan,
    Planner,
)
from banyan.segment import Finish, Segment
from banyan.signals import NO_SIGNALS, Wanted
from banyan.tree import Leaf
from methods.generate.cuts import Run, goes_on, rest, upto

T = TypeVar("T")
Place = tuple[bytes, int]  # a segment, and how many of its tokens come before
_ROOM = "room"


class Slot(Generic[T]):
    """A value that is there, or that processes wait for."""

    __slots__ = ("there", "value", "waiting")

    def __init__(self) -> None:
        self.there = False
        self.value: T
        self.waiting: list[_Process] = []

    def __await__(self) -> "Generator[Slot[T], None, T]":
        if not self.there:
            yield self
        return self.value


_Process = tuple[Coroutine[Slot[Any], None, Any], Slot[Any]]  # what runs, and where its result goes


class Growth:
    """A tree as one policy's processes grow it: they `ask` and `mark`, and `plan` says what came of it since the last."""

    def __init__(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> None:
        self.view, self.room, self.rng = view, room, rng
        self._ready: deque[_Process] = deque()
        self._awaited: dict[Branch | Leaf | str, Slot[Any]] = {}
        self._asked: dict[Branch, Expansion] = {}  # of those, what a branch was asked for with
        self._expansions: list[Expansion] = []
        self._marks: list[LeafMark] = []
        self._dropped: list[Leaf] = []

    # -- for processes --

    @property
    def root(self) -> Place:
        """Where a path starts from the prompt."""
        return self.view.root.id, len(self.view.root)

    def width(self, leaves: int) -> int:
        """So many leaves, or those that there is room for."""
        return leaves if self.room.max_leaves is None else min(leaves, self.room.max_leaves)

    def start(self, process: Coroutine[Any, None, T]) -> Slot[T]:
        """Runs a process beside those that run; the slot is for its result."""
        slot: Slot[T] = Slot()
        self._ready.append((process, slot))
        return slot

    def ask(self, expansion: Expansion) -> Slot[Segment]:
        """The segment at the expansion's branch; asks for it where it is not there."""
        branch = expansion.branch
        segment = self.view.tree.at(branch.parent, branch.fork, branch.ordinal)
        if segment is None and branch not in self._awaited:
            self._asked[branch] = expansion
            self._expansions.append(expansion)
        return self._slot(branch, segment is not None, segment)

    def reward(self, leaf: Leaf) -> Slot[float | None]:
        """A marked leaf's reward."""
        return self._slot(leaf, leaf in self.view.rewards, self.view.rewards.get(leaf))

    def last_room(self) -> Slot[None]:
        """That control gives no more room. With a later room all processes begin anew."""
        return self._slot(_ROOM, self.room.final, None)

    def mark(self, leaf: Leaf, reason: str) -> None:
        """Ends a path."""
        self._marks.append(LeafMark(leaf, reason))

    def drop(self, leaf: Leaf) -> None:
        """Takes a marked leaf back: it is none of the tree's any more. Where a path goes on from it, its score is
        that place's own reward, which the tree waits for."""
        self._dropped.append(leaf)

    def end(self, run: Run) -> None:
        """Ends a path with a run that the model or its limit ended."""
        self.mark(run.leaf, "stop" if run.last.finish is Finish.STOP else "length")

    async def run(self, expansion: Expansion) -> Run:
        """The segment at the expansion's branch with all that continues it where it was cut, or forced."""
        pieces = [await self.ask(expansion)]
        while goes_on(pieces[-1]):
            pieces.append(await self.ask(rest(pieces[-1], expansion.signals)))
        return Run(tuple(pieces))

    async def path(self, branch: Branch, start: int = 0, signals: Wanted = NO_SIGNALS) -> Run:
        """What a branch behind `start` policy tokens becomes when it is sampled to its path's end, which is a leaf."""
        sampling = upto(self.view.sampling, self.view.max_path_tokens - start)
        run = await self.run(Expansion(branch, sampling, (), signals))
        self.end(run)
        return run

    # -- for the grower --

    def plan(self, news: News = NOTHING_NEW) -> Plan:
        """What processes ask for and mark now that they have the news, which the view holds already."""
        for segment in news.segments:
            self._fill(Branch(segment.parent, segment.fork, segment.ordinal), segment)
        for leaf in news.scored:
            self._fill(leaf, self.view.rewards[leaf])
        self._expansions += [self._asked[branch] for branch in news.gone if branch in self._asked]
        while self._ready:
            self._advance(*self._ready.popleft())
        dropped = tuple(self._dropped)
        plan = Plan(tuple(self._expansions), tuple(self._marks), done=not self._awaited, dropped=dropped)
        self._expansions, self._marks, self._dropped = [], [], []
        return plan

    def _slot(self, of: Branch | Leaf | str, there: bool, value: Any) -> Slot[Any]:
        if not there:
            return self._awaited.setdefault(of, Slot())
        slot: Slot[Any] = Slot()
        slot.there, slot.value = True, value
        return slot

    def _fill(self, of: Branch | Leaf, value: Any) -> None:
        slot = self._awaited.pop(of, None)
        if isinstance(of, Branch):
            self._asked.pop(of, None)
        if slot is not None:
            self._give(slot, value)

    def _give(self, slot: Slot[Any], value: Any) -> None:
        slot.there, slot.value = True, value
        self._ready += slot.waiting

    def _close(self) -> None:
        """Ends what has not begun, when a process raised: its tree ends."""
        for process, _ in self._ready:
            process.close()

    def _advance(self, process: Coroutine[Slot[Any], None, Any], result: Slot[Any]) -> None:
        """Runs a process up to where it waits, or to its end."""
        try:
            awaited = process.send(None)
        except StopIteration as end:
            self._give(result, end.value)
        except BaseException:
            self._close()
            raise
        else:
            awaited.waiting.append((process, result))


class Growing(ABC):
    """A tree policy that is a process."""

    @abstractmethod
    async def grow(self, growth: Growth) -> None:
        """Grows a tree from its prompt. All randomness is `growth.rng`, keyed by purpose and place."""

    def planner(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> Planner:
        """The process, begun on a tree and left waiting."""
        growth = Growth(view, room, rng)
        growth.start(self.grow(growth))
        return growth

    def plan(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> Plan:
        """All that the tree lacks, and all its leaves so far."""
        return self.planner(view, room, rng).plan()
