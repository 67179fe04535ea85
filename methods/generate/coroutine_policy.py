"""Base of tree policies, not a method: a policy as a coroutine that requests segments (ADR 019).

A policy's `grow` runs until a result that it awaits is missing. Begun anew on a recorded tree it
comes as far as the tree does: that is its `plan`. Left waiting, it continues when a segment
arrives: that is its `planner`, whose cost depends on the news alone. Both give the same result,
since a coroutine knows nothing but the results that it awaited. So its parts must share nothing
that shows the order of their ends.
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
Place = tuple[bytes, int]  # a segment, and the number of its tokens before the place
_ROOM = "room"


class Unanswered(Exception):
    """An action that gets no answer: its path has ended, as a leaf without a score."""


class Slot(Generic[T]):
    """Value that may be missing, or never come, and the processes that await it."""

    __slots__ = ("lost", "there", "value", "waiting")

    def __init__(self) -> None:
        self.there = self.lost = False
        self.value: T
        self.waiting: list[_Process] = []

    def __await__(self) -> "Generator[Slot[T], None, T]":
        if not self.there:
            yield self
        if self.lost:
            raise Unanswered
        return self.value


_Process = tuple[Coroutine[Slot[Any], None, Any], Slot[Any]]  # coroutine, slot of its result


class Growth:
    """Tree as one policy's processes grow it.

    Processes `ask` for segments and `mark` leaves; `plan` returns the new requests.
    """

    def __init__(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> None:
        self.view = view
        self.room = room
        self.rng = rng
        self._ready: deque[_Process] = deque()
        self._awaited: dict[Branch | Leaf | str, Slot[Any]] = {}
        self._asked: dict[Branch, Expansion] = {}  # requests of awaited branches
        self._expansions: list[Expansion] = []
        self._marks: list[LeafMark] = []
        self._dropped: list[Leaf] = []
        self._calls: list[Branch] = []

    # -- for processes --

    @property
    def root(self) -> Place:
        """Place where a path starts from the prompt."""
        return self.view.root.id, len(self.view.root)

    def width(self, leaves: int) -> int:
        """Return the number of leaves, bounded by the growth budget."""
        return leaves if self.room.max_leaves is None else min(leaves, self.room.max_leaves)

    def start(self, process: Coroutine[Any, None, T]) -> Slot[T]:
        """Run a process beside the others; return the slot of its result."""
        slot: Slot[T] = Slot()
        self._ready.append((process, slot))
        return slot

    def ask(self, expansion: Expansion) -> Slot[Segment]:
        """Return the segment at the expansion's branch; request it if missing."""
        branch = expansion.branch
        segment = self.view.tree.at(branch.parent, branch.fork, branch.ordinal)
        if segment is None and branch not in self._awaited:
            self._asked[branch] = expansion
            self._expansions.append(expansion)
        return self._slot(branch, segment is not None, segment)

    def reward(self, leaf: Leaf) -> Slot[float | None]:
        """Return a marked leaf's reward."""
        return self._slot(leaf, leaf in self.view.rewards, self.view.rewards.get(leaf))

    def last_room(self) -> Slot[None]:
        """Wait until control grants no more. With a later budget all processes begin anew."""
        return self._slot(_ROOM, self.room.final, None)

    def mark(self, leaf: Leaf, reason: str) -> None:
        """End a path."""
        self._marks.append(LeafMark(leaf, reason))

    def drop(self, leaf: Leaf) -> None:
        """Remove a marked leaf from the tree's leaves.

        If a path goes on from it, its score is that place's own reward, which the tree waits for.
        """
        self._dropped.append(leaf)

    def end(self, run: Run) -> None:
        """End a path with a run that the model or its limit ended."""
        self.mark(run.leaf, "stop" if run.last.finish is Finish.STOP else "length")

    async def run(self, expansion: Expansion) -> Run:
        """Return the segment at the expansion's branch with all that continues it.

        A segment is continued where it was cut, or where its tokens were forced.
        """
        pieces = [await self.ask(expansion)]
        while goes_on(pieces[-1]):
            pieces.append(await self.ask(rest(pieces[-1], expansion.signals)))
        return Run(tuple(pieces))

    def act(self, run: Run) -> Slot[Segment]:
        """Return the environment's answer to a run that ended with an action.

        Awaiting it raises Unanswered if none will come: the path is a leaf then, and the process
        that lets the error pass is over.
        """
        branch = Branch(run.last.id, len(run.last), 0)
        segment = self.view.tree.at(branch.parent, branch.fork, branch.ordinal)
        is_new = segment is None and branch not in self._awaited
        slot = self._slot(branch, segment is not None, segment)
        if is_new:
            if run.leaf in self.view.leaves:
                self._lose(run.leaf)
            else:
                self._calls.append(branch)
        return slot

    async def leg(self, branch: Branch, start: int = 0, signals: Wanted = NO_SIGNALS) -> Run:
        """Sample a branch behind `start` policy tokens to its end, or to its next action."""
        sampling = upto(self.view.sampling, self.view.max_path_tokens - start)
        return await self.run(Expansion(branch, sampling, signals=signals))

    def ended_by(self, answer: Segment) -> bool:
        """End a path whose answer leaves nothing to say; return whether it is one."""
        if answer.finish is Finish.BOUNDARY:
            return False
        reason = "done" if answer.finish is Finish.STOP else "length"
        self.mark(Leaf(answer.id, len(answer)), reason)
        return True

    async def path(self, branch: Branch, start: int = 0, signals: Wanted = NO_SIGNALS) -> Run:
        """Sample a branch behind `start` policy tokens to its path's end, which is a leaf.

        Actions on the way are answered; the run holds what the policy said. An action that gets no
        answer ends the path.
        """
        pieces: tuple[Segment, ...] = ()
        while True:
            run = await self.leg(branch, start + sum(map(len, pieces)), signals)
            pieces += run.pieces
            if run.last.finish is not Finish.TOOL_CALL:
                self.end(run)
                return Run(pieces)
            try:
                answer = await self.act(run)
            except Unanswered:
                return Run(pieces)
            if self.ended_by(answer):
                return Run(pieces)
            branch = Branch(answer.id, len(answer), 0)

    # -- for the grower --

    def plan(self, news: News = NOTHING_NEW) -> Plan:
        """Return the new requests and marks, given news that the view already holds."""
        for segment in news.segments:
            self._fill(Branch(segment.parent, segment.fork, segment.ordinal), segment)
        for leaf in news.unanswered:
            self._lose(leaf)
        for leaf in news.scored:
            self._fill(leaf, self.view.rewards[leaf])
        self._expansions += [self._asked[branch] for branch in news.gone if branch in self._asked]
        try:
            while self._ready:
                self._advance(*self._ready.popleft())
        finally:
            self._close()
        dropped = tuple(self._dropped)
        plan = Plan(
            tuple(self._expansions),
            tuple(self._marks),
            done=not self._awaited,
            dropped=dropped,
            calls=tuple(self._calls),
        )
        self._expansions, self._marks, self._dropped, self._calls = [], [], [], []
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

    def _lose(self, leaf: Leaf) -> None:
        """Mark the end of an action that gets no answer, and let who awaits it know."""
        self.mark(leaf, "unanswered")
        slot = self._awaited.pop(Branch(leaf.segment, leaf.end, 0), None)
        if slot is not None:
            slot.lost = True
            self._give(slot, None)

    def _give(self, slot: Slot[Any], value: Any) -> None:
        slot.there, slot.value = True, value
        self._ready += slot.waiting

    def _close(self) -> None:
        """Close the processes that are ready, after one raised: its tree ends.

        No coroutine may be left unclosed. Where none raised, none is ready.
        """
        for process, _ in self._ready:
            process.close()

    def _advance(self, process: Coroutine[Slot[Any], None, Any], result: Slot[Any]) -> None:
        """Run a process to its next wait, or to its end."""
        try:
            awaited = process.send(None)
        except StopIteration as end:
            self._give(result, end.value)
        except Unanswered:
            result.lost = True
            self._give(result, None)
        else:
            awaited.waiting.append((process, result))


class Growing(ABC):
    """Tree policy that is a coroutine."""

    @abstractmethod
    async def grow(self, growth: Growth) -> None:
        """Grow a tree from its prompt. All randomness is `growth.rng`, keyed by purpose and
        place."""

    def planner(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> Planner:
        """Return the process, begun on a tree and left waiting."""
        growth = Growth(view, room, rng)
        growth.start(self.grow(growth))
        return growth

    def plan(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> Plan:
        """Return all that the tree lacks, and all its leaves so far."""
        return self.planner(view, room, rng).plan()
