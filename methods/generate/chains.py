"""Chains: a path's own tokens over as many segments as it took, so that a plan can look at a running path at their ends.

A chain goes on at the end of its last segment with ordinal 0, whatever ended that one: a boundary, forced tokens, or a new
policy. So its next place is a function of recorded facts, and a resumed tree asks for the same one.
"""

from dataclasses import dataclass, field

from banyan.errors import InvalidInput
from banyan.plugins import Branch, Expansion
from banyan.segment import Finish, Sampling, Segment
from banyan.signals import NO_SIGNALS, Signals, Wanted
from banyan.tree import Leaf
from methods.generate.cuts import upto


@dataclass(frozen=True, slots=True)
class Chain:
    """What grew at a branch that lies behind `start` policy tokens of a path of at most `limit`. Parents first."""

    branch: Branch
    start: int
    limit: int
    pieces: tuple[Segment, ...] = ()
    stop: int = field(init=False)  # policy tokens of the path

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", self.start + sum([len(piece) for piece in self.pieces]))

    @property
    def ended(self) -> bool:
        """Whether it can grow no more: the model's end, or the path's limit."""
        return bool(self.pieces) and (self.stopped or self.stop >= self.limit)

    @property
    def stopped(self) -> bool:
        """Whether the model ended it."""
        return bool(self.pieces) and self.pieces[-1].finish is Finish.STOP

    def and_then(self, piece: Segment) -> "Chain":
        """The chain with its next piece."""
        return Chain(self.branch, self.start, self.limit, (*self.pieces, piece))

    def place(self, position: int) -> tuple[bytes, int]:
        """The segment and the fork before the token at a position of the path; its first token's place is its branch."""
        at = position - self.start
        if at == 0:
            return self.branch.parent, self.branch.fork
        for piece in self.pieces:
            if at <= len(piece):
                return piece.id, at
            at -= len(piece)
        raise AssertionError(f"position {position} lies beyond {self.start}..{self.stop}")

    def leaf(self, tokens: int | None = None) -> Leaf:
        """The end of the path, or that of its first so many policy tokens."""
        return Leaf(*self.place(self.stop if tokens is None else tokens))

    def more(
        self,
        sampling: Sampling,
        tokens: int,
        forced: tuple[int, ...] = (),
        signals: Wanted = NO_SIGNALS,
    ) -> Expansion:
        """Its next segment, up to so many policy tokens of the path. `forced` is what it begins with."""
        if self.pieces:
            branch, forced = Branch(self.pieces[-1].id, len(self.pieces[-1]), 0), ()
        else:
            branch = self.branch
        room = min(tokens, self.limit) - self.stop - len(forced)
        return Expansion(branch, upto(sampling, room), forced, signals)


def told(segment: Segment) -> Signals:
    """The segment's signals. Raises InvalidInput where its engine gave no likeliest tokens."""
    if len(segment.signals.top_ids_T_K) != len(segment):
        raise InvalidInput(
            f"segment {segment.id.hex()[:12]} comes without its likeliest tokens; use an engine that gives them: torch"
        )
    return segment.signals
