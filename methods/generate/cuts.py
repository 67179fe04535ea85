"""Runs, a helper of tree policies (not a method): segments that others continue, seen as one.

Segments that a new policy cut, and forced tokens, are continued at their end with ordinal 0: an
ABORTED segment with the rest of its max_new_tokens, a forced one with all of them, unless it holds
the model's end (STOP). So the place is a function of recorded facts, and a resumed tree requests
the same one.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from banyan.plugins import Branch, Expansion, GrowthView
from banyan.segment import Finish, Floats, Kind, Origin, Sampling, Segment
from banyan.signals import MOST_TOP, Wanted
from banyan.tree import Leaf


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a branch: one segment, or several if it was cut. Parents first."""

    pieces: tuple[Segment, ...]

    @property
    def last(self) -> Segment:
        """Segment that it ends with."""
        return self.pieces[-1]

    @property
    def leaf(self) -> Leaf:
        """Its end."""
        return Leaf(self.last.id, len(self.last))

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
    """Return the result of the branch; None while it is not sampled to its end."""
    pieces: list[Segment] = []
    at: Branch | None = branch
    while at is not None:
        segment = view.tree.at(at.parent, at.fork, at.ordinal)
        if segment is None:
            return None
        pieces.append(segment)
        at = Branch(segment.id, len(segment), 0) if goes_on(segment) else None
    return Run(tuple(pieces))


def goes_on(segment: Segment) -> bool:
    """Return whether another segment continues this one as one run."""
    forced = segment.kind is Kind.FORCED and segment.origin in (Origin.BRANCH, Origin.TEACHER)
    return segment.finish is Finish.ABORTED or (forced and segment.finish is not Finish.STOP)


def rest(segment: Segment, signals: Wanted) -> Expansion:
    """Return the continuation of a segment that goes on."""
    left = segment.sampling.max_new_tokens - (len(segment) if segment.kind is Kind.POLICY else 0)
    branch = Branch(segment.id, len(segment), 0)
    return Expansion(branch, upto(segment.sampling, left), signals=signals)


@lru_cache(256)  # the paths of a tree share a few of them
def upto(sampling: Sampling, tokens: int) -> Sampling:
    """Return the sampling with at most so many tokens."""
    return replace(sampling, max_new_tokens=tokens)


def continuations(view: GrowthView) -> tuple[Expansion, ...]:
    """Return the rest of every cut segment, and the continuation of forced tokens, with signals."""
    return tuple(
        rest(s, _signals(s)) for s in view.tree if s.kind is not Kind.PROMPT and goes_on(s)
    )


def _signals(segment: Segment) -> Wanted:
    top, semantic = segment.signals.top_ids_T_K.shape[1], bool(segment.signals.semantic_T.size)
    return Wanted(top, (top or MOST_TOP) if semantic else 0, bool(segment.signals.head_T.size))
