"""Segments that a new policy cut: the rest of each is sampled as a continuation, and a plan sees both as one run.

An ABORTED segment is continued at its end with ordinal 0 and what is left of its max_new_tokens, so that the place is a
function of recorded facts and a resumed tree asks for the same one.
"""

from dataclasses import dataclass, replace

from banyan.plugins import Branch, Expansion, GrowthView
from banyan.segment import Finish, Floats, Kind, Segment


@dataclass(frozen=True, slots=True)
class Run:
    """What a branch became: one segment, or several where it was cut. Parents first."""

    pieces: tuple[Segment, ...]

    @property
    def last(self) -> Segment:
        """The segment that it ends with."""
        return self.pieces[-1]

    @property
    def text(self) -> str:
        """Its text."""
        return "".join(s.text for s in self.pieces)

    @property
    def logprobs(self) -> list[Floats]:
        """Its behaviour log-probs by piece."""
        return [s.logprobs_T for s in self.pieces]

    def __len__(self) -> int:
        return sum(len(s) for s in self.pieces)


def run_at(view: GrowthView, branch: Branch) -> Run | None:
    """What the branch became; None while it is not sampled to its end."""
    pieces: list[Segment] = []
    at: Branch | None = branch
    while at is not None:
        segment = view.tree.at(at.parent, at.fork, at.ordinal)
        if segment is None:
            return None
        pieces.append(segment)
        at = Branch(segment.id, len(segment), 0) if segment.finish is Finish.ABORTED else None
    return Run(tuple(pieces))


def continuations(view: GrowthView) -> tuple[Expansion, ...]:
    """The rest of every segment that was cut."""
    return tuple(
        Expansion(
            Branch(segment.id, len(segment), 0),
            replace(segment.sampling, max_new_tokens=segment.sampling.max_new_tokens - len(segment)),
        )
        for segment in view.tree
        if segment.kind is Kind.POLICY and segment.finish is Finish.ABORTED
    )
