"""echo: chains that branch once where entropy is high and confidence low, and end where confidence is lost (ECHO, arXiv
2602.02150; card 1).

`chains` base chains are sampled. At its end each is searched for its first uncertain token; there the likeliest tokens
open branches, as many as entropy and confidence say (the chain itself keeps its own token). What then lacks to `width`
leaves is sampled afresh from the prompt. Every path is looked at after each `segment` tokens: where a cut rule fires, the
path ends there, inside its segment, and no more is sampled of it.

Thresholds. Those that were published cannot fire: H of K tokens is at most ln K, 3.0 of 20 and below their 3.5, and their
measure of confidence is at least ln 5 = 1.6, above their 1.2 and 0.4. So by default a token's H must reach the
`entropy_high` quantile of its own chain's and Cg not exceed the `confidence` quantile of it, and the width's scale runs
between the chain's own quantiles. A path is cut by absolute numbers, as any chain has tokens below its own quantile: the
mean of the k largest probabilities falls below 0.5/k, or keeps falling below 0.8/k; they are shares of 1/k, its most. No
path is cut before all windows are full: a prompt may be begun to be answered in many ways. `thresholds: published` brings
back the published numbers and measure.

Forced tokens are context for the learner; all else is sampled at the recipe's temperature, so no importance is lost.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from banyan.draws import Draws
from banyan.plugins import Branch, Expansion, GrowthView, LeafMark, Plan, Room
from banyan.segment import Segment
from banyan.signals import MOST_TOP, Wanted
from services.rollout.generate import confidence
from services.rollout.generate.chains import Chain, chain_at, told
from services.rollout.generate.confidence import Cuts, Profile, Values, Width

_DEFAULTS = {"quantile": (0.9, 0.5, 0.5), "published": (3.5, 1.0, 1.2)}  # entropy_high, entropy_low, confidence
_COUNTS = ("width", "chains", "segment", "top", "confidence_k", "min_depth", "group_window", "tail_window")
_MORE_COUNTS = ("entropy_window", "min_branches", "max_branches", "cut_steps")


@dataclass(frozen=True)
class Echo:
    """Entropy-confidence branching with cuts."""

    width: int = 32
    """n: leaves of a tree."""
    chains: int = 1
    """Base chains; each may branch once."""
    segment: int = 256
    """Tokens after which a path is looked at: the most that a cut path wastes."""
    top: int = 20
    """K: likeliest tokens that entropy and confidence run over."""
    confidence_k: int = 5
    """k: of those, the ones whose probabilities are the confidence."""
    thresholds: str = "quantile"
    """What entropy_high, entropy_low and confidence are: quantiles of the chain, or values as published."""
    measure: str | None = None
    """Of confidence: mean_probability, or neg_mean_log, which goes with the published thresholds."""
    entropy_high: float | None = None
    """H from which a token may branch."""
    entropy_low: float | None = None
    """H at which the width is the least."""
    confidence: float | None = None
    """Cg up to which a token may branch."""
    rise: float = 0.2
    """Nats that H must lie above those before, for a branch."""
    min_depth: int = 4
    """Tokens of a chain before its first branch."""
    group_window: int = 4
    """Tokens of Cg."""
    tail_window: int = 8
    """Tokens of Ct."""
    entropy_window: int = 4
    """Tokens before, that H is compared with."""
    min_branches: int = 1
    """Least width of a branch; 1 is the chain alone."""
    max_branches: int = 4
    """Largest width of a branch."""
    alpha: float = 2.0
    """Weight of entropy in the width."""
    beta: float = 1.0
    """Weight of confidence in the width."""
    floor: float = 0.01
    """Probability that a token must exceed to be forced; as published: 0."""
    cut: bool = True
    """Whether paths are cut."""
    cut_confidence: float | None = None
    """Cg below which a path is cut."""
    cut_tail: float | None = None
    """Ct at most, for a path to be cut when Ct keeps falling."""
    cut_rise: float = 0.5
    """Nats of rise, for a path to be cut when H keeps rising."""
    cut_steps: int = 3
    """Tokens in a row that count as keeping on."""

    def __post_init__(self) -> None:
        for name in (*_COUNTS, *_MORE_COUNTS):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")
        if not self.confidence_k <= self.top <= MOST_TOP or self.max_branches > self.top:
            raise ValueError(f"confidence_k and max_branches may not exceed top, nor top {MOST_TOP}; top is {self.top!r}")
        if self.thresholds not in _DEFAULTS:
            raise ValueError(f"thresholds must be one of {', '.join(_DEFAULTS)}, got {self.thresholds!r}")
        if self.measured not in confidence.MEASURES:
            raise ValueError(f"measure must be one of {', '.join(confidence.MEASURES)}, got {self.measure!r}")
        if self.thresholds == "quantile" and not all(0.0 <= q <= 1.0 for q in self.levels):
            raise ValueError(f"quantiles must lie in 0..1, got entropy_high, entropy_low, confidence {self.levels}")
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor must be a probability below 1, got {self.floor!r}")

    @property
    def measured(self) -> str:
        """The measure of confidence in use."""
        return self.measure or ("neg_mean_log" if self.thresholds == "published" else "mean_probability")

    @property
    def levels(self) -> tuple[float, float, float]:
        """entropy_high, entropy_low, confidence."""
        given = (self.entropy_high, self.entropy_low, self.confidence)
        high, low, theta = (d if g is None else g for g, d in zip(given, _DEFAULTS[self.thresholds], strict=True))
        return high, low, theta

    @property
    def cuts(self) -> Cuts:
        """The cut rules in use."""
        least, tail = (0.4, 1.0) if self.measured == "neg_mean_log" else (0.5 / self.confidence_k, 0.8 / self.confidence_k)
        least = least if self.cut_confidence is None else self.cut_confidence
        full = max(self.group_window, self.tail_window, self.entropy_window)
        return Cuts(least, tail if self.cut_tail is None else self.cut_tail, self.cut_rise, self.cut_steps, full - 1)

    @cached_property
    def name(self) -> str:
        """All settings: what is remembered of a path holds for them alone."""
        return repr(self)

    def branching(self, path: Profile) -> Width:
        """The branch rule on the scale of a chain."""
        high, low, theta = self.levels
        if self.thresholds == "quantile":
            high, low = (float(np.quantile(path.entropy_T, q)) for q in (high, low))
            theta = float(np.quantile(path.group_T, theta))
        return Width(high, low, theta, self.rise, self.alpha, self.beta, self.min_branches, self.max_branches)

    def plan(self, view: GrowthView, room: Room, rng: Draws) -> Plan:
        """All paths that there may be so far, with what each lacks."""
        width = self.width if room.max_leaves is None else min(self.width, room.max_leaves)
        return _Growth(self, view, width).plan()


# A segment stands for its path, and a plan looks at all paths again and again: what was found of one is kept with it.
_FOUND: WeakKeyDictionary[Segment, dict[Any, Any]] = WeakKeyDictionary()


def _signals(segment: Segment, k: int, measure: str) -> tuple[Values, Values]:
    kept = _FOUND.setdefault(segment, {})
    if (k, measure) not in kept:
        kept[(k, measure)] = confidence.entropy_and_confidence(told(segment).top_logprobs_T_K, k, measure)
    found: tuple[Values, Values] = kept[(k, measure)]
    return found


@dataclass(slots=True)
class _Growth:
    """One tree as it is seen now."""

    policy: Echo
    view: GrowthView
    width: int
    expansions: list[Expansion] = field(default_factory=list)
    marks: list[LeafMark] = field(default_factory=list)

    def plan(self) -> Plan:
        bases = min(self.policy.chains, self.width)
        branches = [self._base(ordinal) for ordinal in range(bases)]
        used = bases
        for found in branches:  # a chain that still runs holds room for all branches it may get, so that none takes it
            for branch, start, token in (found or [])[: self.width - used]:
                self._path(branch, start, (token,))
            used = min(self.width, used + (self.policy.max_branches - 1 if found is None else len(found)))
        for ordinal in range(bases, bases + self.width - used):
            self._path(self._fresh(ordinal), 0)
        return Plan(tuple(self.expansions), tuple(self.marks), done=len(self.marks) == self.width)

    def _fresh(self, ordinal: int) -> Branch:
        return Branch(self.view.root.id, len(self.view.root), ordinal)

    def _base(self, ordinal: int) -> list[tuple[Branch, int, int]] | None:
        """A base chain's branches, each with its place on the path and its token; None while the chain runs."""
        chain = self._path(self._fresh(ordinal), 0)
        if chain is None:
            return None
        kept = _FOUND.setdefault(chain.pieces[-1], {})
        key = ("branch", self.policy.name, chain.limit)
        if key not in kept:
            kept[key] = self._uncertain(chain)
        if kept[key] is None:
            return []
        at, width = kept[key]
        return [(Branch(*chain.place(at), 1 + rank), at, token) for rank, token in self._likeliest(chain, at, width)]

    def _uncertain(self, chain: Chain) -> tuple[int, int] | None:
        """Where a chain branches and how wide: before its cut, and with room for a forced token and one more."""
        path = self._profile(chain)
        cut = self.policy.cuts.first(path) if self.policy.cut else None
        rule = self.policy.branching(path if cut is None else path.first(cut[0] + 1))
        at = rule.first(path, self.policy.min_depth, min(chain.limit - 1, len(path) if cut is None else cut[0]))
        return None if at is None else (at, rule.at(float(path.entropy_T[at]), float(path.group_T[at])))

    def _likeliest(self, chain: Chain, at: int, width: int) -> list[tuple[int, int]]:
        """The likeliest tokens beside the chain's own, with their ranks: width − 1 of them, if so many are likely."""
        segment, offset = _holder(chain, at)
        signals, own = told(segment), int(segment.tokens_T[offset])
        tokens, p = signals.top_ids_T_K[offset], np.exp(signals.top_logprobs_T_K[offset])
        ranked = [(rank, int(tokens[rank])) for rank in range(min(width, len(tokens))) if p[rank] > self.policy.floor]
        return [(rank, token) for rank, token in ranked if token != own][: width - 1]

    def _path(self, branch: Branch, start: int, forced: tuple[int, ...] = ()) -> Chain | None:
        """Marks the path's leaf and returns it; None if it still runs, and then asks for what it lacks."""
        chain = chain_at(self.view, branch, start)
        mark = self._mark(chain) if chain.pieces else None
        if mark is not None:
            self.marks.append(mark)
            return chain
        begun = chain.stop if chain.pieces else chain.stop + len(forced)
        looked = (begun // self.policy.segment + 1) * self.policy.segment
        self.expansions.append(chain.more(self.view.sampling, looked, forced, Wanted(top=self.policy.top)))
        return None

    def _mark(self, chain: Chain) -> LeafMark | None:
        """The path's leaf; None while it runs."""
        kept = _FOUND.setdefault(chain.pieces[-1], {})
        key = ("mark", self.policy.name, chain.limit)
        if key not in kept:
            kept[key] = self._ending(chain)
        mark: LeafMark | None = kept[key]
        return mark

    def _ending(self, chain: Chain) -> LeafMark | None:
        cut = self.policy.cuts.first(self._profile(chain)) if self.policy.cut else None
        if cut is not None and not (chain.ended and cut[0] + 1 == chain.stop):
            return LeafMark(chain.leaf(cut[0] + 1), cut[1])
        return LeafMark(chain.leaf(), "stop" if chain.stopped else "length") if chain.ended else None

    def _profile(self, chain: Chain) -> Profile:
        """Of the whole path, as windows reach back beyond the branch."""
        last, p = chain.pieces[-1], self.policy
        parts = self.view.tree.pieces(last.id, len(last))[1:]
        values = [tuple(v[:end] for v in _signals(s, p.confidence_k, p.measured)) for s, end in parts]
        entropy, c = (np.concatenate(column) for column in zip(*values, strict=True))
        return confidence.profile(entropy, c, p.group_window, p.tail_window, p.entropy_window)


def _holder(chain: Chain, position: int) -> tuple[Segment, int]:
    """The segment that holds the token at a position of the path, and the token's place in it."""
    at = position - chain.start
    for piece in chain.pieces:
        if at < len(piece):
            return piece, at
        at -= len(piece)
    raise AssertionError(f"position {position} lies beyond {chain.start}..{chain.stop}")
