"""Paths of segments, shared by treepo and treepo-eager: settings, ends, and cuts."""

from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import Branch, Expansion, GrowthView, checks
from banyan.segment import Finish, Floats, Segment
from banyan.tree import Leaf
from methods.generate.coroutine_policy import Growing
from methods.generate.cuts import Run, upto
from methods.generate.treepo import endings


@dataclass(frozen=True)
class Segmented(Growing):
    """Settings of trees of segments."""

    segment: int = 512
    """Tokens of a segment."""
    max_depth: int = 14
    """Segments that a path may have."""
    width: int = 16
    """W: leaves of a tree."""
    divisor: int = 2
    """d: branches of the prompt, and the factor of the budget."""
    fallback: str = "random"
    """Place where a finished path is cut: random, argmin_logprob, block_softmax, from_start."""
    finished: str = "eos"
    """Condition for a finished path: the end token, a boxed answer, or both."""
    repetition_first: bool = False
    """True if repetition is checked before everything else."""

    def __post_init__(self) -> None:
        checks.whole(self, ("segment", "max_depth", "width", "divisor"), 1)
        self._one_of("fallback", endings.CUTS)
        self._one_of("finished", endings.FINISHED)

    @property
    def forks_inside(self) -> bool:
        """True if paths may be cut between the ends of segments, whose KV engines keep anyway."""
        return self.fallback == "argmin_logprob"

    def _one_of(self, name: str, known: tuple[str, ...]) -> None:
        if getattr(self, name) not in known:
            raise ValueError(
                f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
            )


@dataclass(frozen=True, slots=True)
class Paths:
    """Common parts of the paths of one tree."""

    policy: Segmented
    view: GrowthView

    def expansion(self, branch: Branch, tokens: int) -> Expansion:
        """Return the segment at a branch that lies behind so many policy tokens."""
        deepest = self.policy.segment * self.policy.max_depth
        most = min(self.policy.segment, self.view.max_path_tokens - tokens, deepest - tokens)
        return Expansion(branch, upto(self.view.sampling, most))

    def ending(self, run: Run, tokens: int) -> str | None:
        """Return the reason why the path ends with this run; None if it goes deeper."""
        return endings.ending(
            lambda: self._text(run.leaf),
            segment_text=run.text,
            stopped=run.last.finish is Finish.STOP,
            full=tokens >= self.view.max_path_tokens,
            deep=-(-tokens // self.policy.segment) >= self.policy.max_depth,
            finished=self.policy.finished,
            repetition_first=self.policy.repetition_first,
        )

    def logprobs(self, leaf: Leaf) -> Floats:
        """Return the behaviour log-probs of the path's policy tokens."""
        return self.view.tree.prefix_logprobs(leaf.segment, leaf.end)[len(self.view.root) :]

    def cut(self, leaf: Leaf, rng: Draws, key: int) -> tuple[Segment, int, int]:
        """Return the place where a finished path is branched again.

        It is a segment, a fork in it, and the number of policy tokens before.
        """
        keep = endings.cut(self.policy.fallback, self.logprobs(leaf), self.policy.segment, rng, key)
        at = len(self.view.root) + keep
        for segment, end in self.view.tree.pieces(leaf.segment, leaf.end):
            if at <= end:
                return segment, at, keep
            at -= end
        raise AssertionError(f"a cut after {keep} tokens lies beyond the path")

    def _text(self, leaf: Leaf) -> str:
        """Return the text of the path without segments that it uses in part: a fork has no place
        in a text."""
        return "".join(
            s.text for s, end in self.view.tree.pieces(leaf.segment, leaf.end)[1:] if end == len(s)
        )
