"""Chains, a helper of tree policies (not a method): the segments of one path's own tokens.

A policy can examine a running path at the ends of its segments. A chain continues at the end of its
last segment with ordinal 0, whatever ended that one: a boundary, forced tokens, or a new policy. So
its next place is a function of recorded facts, and a resumed tree requests the same one.
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
    """Segments that grew at a branch.

    branch: place of the first segment
    start: policy tokens of the path before the branch
    limit: policy tokens of the path at most
    pieces: the segments, parents first
    stop: policy tokens of the path
    """

    branch: Branch
    start: int
    limit: int
    pieces: tuple[Segment, ...] = ()
    stop: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", self.start + sum([len(piece) for piece in self.pieces]))

    @property
    def ended(self) -> bool:
        """True if it cannot grow: at the model's end, or at the path's limit."""
        return bool(self.pieces) and (self.stopped or self.stop >= self.limit)

    @property
    def stopped(self) -> bool:
        """True if the model ended it."""
        return bool(self.pieces) and self.pieces[-1].finish is Finish.STOP

    def and_then(self, piece: Segment) -> "Chain":
        """Return the chain with its next piece."""
        return Chain(self.branch, self.start, self.limit, (*self.pieces, piece))

    def place(self, position: int) -> tuple[bytes, int]:
        """Return the segment and the fork before the token at a position of the path.

        The place of its first token is its branch.
        """
        at = position - self.start
        if at == 0:
            return self.branch.parent, self.branch.fork
        for piece in self.pieces:
            if at <= len(piece):
                return piece.id, at
            at -= len(piece)
        raise AssertionError(f"position {position} lies beyond {self.start}..{self.stop}")

    def holder(self, position: int) -> tuple[Segment, int]:
        """Return the segment of the token at a position of the path, and the token's index in
        it."""
        at = position - self.start
        for piece in self.pieces:
            if at < len(piece):
                return piece, at
            at -= len(piece)
        raise AssertionError(f"position {position} lies beyond {self.start}..{self.stop}")

    def leaf(self, tokens: int | None = None) -> Leaf:
        """Return the end of the path, or of its first so many policy tokens."""
        return Leaf(*self.place(self.stop if tokens is None else tokens))

    def more(
        self,
        sampling: Sampling,
        tokens: int,
        forced: tuple[int, ...] = (),
        signals: Wanted = NO_SIGNALS,
    ) -> Expansion:
        """Return its next segment, up to so many policy tokens of the path.

        forced: tokens that an empty chain begins with
        """
        if self.pieces:
            branch, forced = Branch(self.pieces[-1].id, len(self.pieces[-1]), 0), ()
        else:
            branch = self.branch
        budget = min(tokens, self.limit) - self.stop - len(forced)
        return Expansion(branch, upto(sampling, budget), forced, signals)


def signals_of(segment: Segment) -> Signals:
    """Return the segment's signals. Raises InvalidInput if its engine gave no likeliest tokens."""
    if len(segment.signals.top_ids_T_K) != len(segment):
        raise InvalidInput(
            f"segment {segment.id.hex()[:12]} comes without its likeliest tokens; use an engine "
            "that gives them: torch"
        )
    return segment.signals
