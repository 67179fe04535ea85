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

import numpy as np

from banyan.plugins import Branch
from banyan.segment import Segment
from banyan.signals import MOST_TOP, Wanted
from banyan.tree import Leaf
from methods.generate.chains import Chain, told
from methods.generate.coroutine_policy import Growing, Growth
from methods.generate.echo import confidence
from methods.generate.echo.confidence import Cut, Cuts, Profile, Values, Width

_DEFAULTS = {
    "quantile": (0.9, 0.5, 0.5),
    "published": (3.5, 1.0, 1.2),
}  # entropy_high, entropy_low, confidence
_COUNTS = (
    "width",
    "chains",
    "segment",
    "top",
    "confidence_k",
    "min_depth",
    "group_window",
    "tail_window",
)
_MORE_COUNTS = ("entropy_window", "min_branches", "max_branches", "cut_steps")


@dataclass(frozen=True)
class Echo(Growing):
    """Entropy-confidence branching with cuts."""

    toy = "one_fork"

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
                raise ValueError(
                    f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}"
                )
        if not self.confidence_k <= self.top <= MOST_TOP or self.max_branches > self.top:
            raise ValueError(
                f"confidence_k and max_branches may not exceed top, nor top {MOST_TOP}; top is {self.top!r}"
            )
        if self.thresholds not in _DEFAULTS:
            raise ValueError(
                f"thresholds must be one of {', '.join(_DEFAULTS)}, got {self.thresholds!r}"
            )
        if self.measured not in confidence.MEASURES:
            raise ValueError(
                f"measure must be one of {', '.join(confidence.MEASURES)}, got {self.measure!r}"
            )
        if self.thresholds == "quantile" and not all(0.0 <= q <= 1.0 for q in self.levels):
            raise ValueError(
                f"quantiles must lie in 0..1, got entropy_high, entropy_low, confidence {self.levels}"
            )
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor must be a probability below 1, got {self.floor!r}")

    @property
    def measured(self) -> str:
        """The measure of confidence in use."""
        return self.measure or (
            "neg_mean_log" if self.thresholds == "published" else "mean_probability"
        )

    @property
    def levels(self) -> tuple[float, float, float]:
        """entropy_high, entropy_low, confidence."""
        given = (self.entropy_high, self.entropy_low, self.confidence)
        high, low, theta = (
            d if g is None else g for g, d in zip(given, _DEFAULTS[self.thresholds], strict=True)
        )
        return high, low, theta

    @property
    def cuts(self) -> Cuts:
        """The cut rules in use."""
        least, tail = (
            (0.4, 1.0)
            if self.measured == "neg_mean_log"
            else (0.5 / self.confidence_k, 0.8 / self.confidence_k)
        )
        least = least if self.cut_confidence is None else self.cut_confidence
        full = max(self.group_window, self.tail_window, self.entropy_window)
        return Cuts(
            least,
            tail if self.cut_tail is None else self.cut_tail,
            self.cut_rise,
            self.cut_steps,
            full - 1,
        )

    def branching(self, path: Profile) -> Width:
        """The branch rule on the scale of a chain."""
        high, low, theta = self.levels
        if self.thresholds == "quantile":
            high, low = confidence.quantiles(path.entropy_T, (high, low))
            (theta,) = confidence.quantiles(path.group_T, (theta,))
        return Width(
            high, low, theta, self.rise, self.alpha, self.beta, self.min_branches, self.max_branches
        )

    async def grow(self, growth: Growth) -> None:
        """The base chains; their branches and what else there is room for as they end."""
        _Paths(
            self, growth, growth.width(self.width), self.measured, self.cuts, Wanted(top=self.top)
        ).begin()


@dataclass(frozen=True, eq=False, slots=True)
class _Looked:
    """A path as far as it was looked at: H and C of its policy tokens. Those of the chain begin at its start."""

    chain: Chain
    entropy_T: Values = field(default_factory=lambda: np.zeros(0))
    confidence_T: Values = field(default_factory=lambda: np.zeros(0))

    def and_then(self, piece: Segment, k: int, measure: str) -> "_Looked":
        """The path with its next piece."""
        entropy, c = confidence.entropy_and_confidence(told(piece).top_logprobs_T_K, k, measure)
        joined = np.concatenate([self.entropy_T, entropy]), np.concatenate([self.confidence_T, c])
        return _Looked(self.chain.and_then(piece), *joined)

    def below(self, branch: Branch, start: int) -> "_Looked":
        """A path that leaves this one behind `start` tokens: windows reach back beyond the branch."""
        return _Looked(
            Chain(branch, start, self.chain.limit),
            self.entropy_T[:start],
            self.confidence_T[:start],
        )


@dataclass(slots=True)
class _Paths:
    """The paths of one tree. opened: each base chain's branches, a path and the token forced on it; None while it runs.
    begun: how many of them have begun, and last, how many of those that are sampled afresh."""

    policy: Echo
    growth: Growth
    width: int
    measured: str
    cuts: Cuts
    wanted: Wanted
    opened: list[list[tuple[_Looked, int]] | None] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)

    def begin(self) -> None:
        bases = min(self.policy.chains, self.width)
        self.opened, self.begun = [None] * bases, [0] * (bases + 1)
        for ordinal in range(bases):
            self.growth.start(self._base(ordinal))
        self._fill()

    async def _base(self, ordinal: int) -> None:
        self.opened[ordinal] = self._branches(*await self._path(self._fresh(ordinal)))
        self._fill()

    def _fill(self) -> None:
        """Begins what there is room for: a chain that still runs holds room for all branches it may get, so that none takes
        it."""
        used = bases = len(self.opened)
        for base, opened in enumerate(self.opened):
            if used == self.width:
                return
            if opened is not None and self.begun[base] < len(opened):
                for path, token in opened[self._new(base, min(self.width - used, len(opened)))]:
                    self.growth.start(self._path(path, (token,)))
            used = min(
                self.width, used + (self.policy.max_branches - 1 if opened is None else len(opened))
            )
        fresh = self._new(bases, self.width - used)
        for ordinal in range(bases + fresh.start, bases + fresh.stop):
            self.growth.start(self._path(self._fresh(ordinal)))

    def _new(self, of: int, count: int) -> slice:
        """Those among the first `count` that have not begun; now they have."""
        before, self.begun[of] = self.begun[of], max(count, self.begun[of])
        return slice(before, self.begun[of])

    def _fresh(self, ordinal: int) -> _Looked:
        return _Looked(
            Chain(Branch(*self.growth.root, ordinal), 0, self.growth.view.max_path_tokens)
        )

    def _branches(
        self, path: _Looked, profile: Profile, cut: Cut | None
    ) -> list[tuple[_Looked, int]]:
        """A base chain's branches at its first uncertain token: before its cut, and with room for one more token."""
        chain = path.chain
        rule = self.policy.branching(profile if cut is None else profile.first(cut[0] + 1))
        at = rule.first(
            profile,
            self.policy.min_depth,
            min(chain.limit - 1, len(profile) if cut is None else cut[0]),
        )
        if at is None:
            return []
        width, place = (
            rule.at(float(profile.entropy_T[at]), float(profile.group_T[at])),
            chain.place(at),
        )
        likeliest = self._likeliest(chain, at, width)
        return [(path.below(Branch(*place, 1 + rank), at), token) for rank, token in likeliest]

    def _likeliest(self, chain: Chain, at: int, width: int) -> list[tuple[int, int]]:
        """The likeliest tokens beside the chain's own, with their ranks: width − 1 of them, if so many are likely."""
        segment, offset = _holder(chain, at)
        signals, own = told(segment), int(segment.tokens_T[offset])
        tokens, p = signals.top_ids_T_K[offset], np.exp(signals.top_logprobs_T_K[offset])
        ranked = [
            (rank, int(tokens[rank]))
            for rank in range(min(width, len(tokens)))
            if p[rank] > self.policy.floor
        ]
        return [(rank, token) for rank, token in ranked if token != own][: width - 1]

    async def _path(
        self, path: _Looked, forced: tuple[int, ...] = ()
    ) -> tuple[_Looked, Profile, Cut | None]:
        """Looks at a path after each segment, up to its leaf."""
        p = self.policy
        while True:
            begun = path.chain.stop + (0 if path.chain.pieces else len(forced))
            looked = (begun // p.segment + 1) * p.segment
            more = path.chain.more(self.growth.view.sampling, looked, forced, self.wanted)
            path = path.and_then(await self.growth.ask(more), p.confidence_k, self.measured)
            profile = self._profile(path)
            cut = self.cuts.first(profile) if p.cut else None
            mark = self._ending(path.chain, cut)
            if mark is not None:
                self.growth.mark(*mark)
                return path, profile, cut

    def _ending(self, chain: Chain, cut: Cut | None) -> tuple[Leaf, str] | None:
        if cut is not None and not (chain.ended and cut[0] + 1 == chain.stop):
            return chain.leaf(cut[0] + 1), cut[1]
        return (chain.leaf(), "stop" if chain.stopped else "length") if chain.ended else None

    def _profile(self, path: _Looked) -> Profile:
        p = self.policy
        return confidence.profile(
            path.entropy_T, path.confidence_T, p.group_window, p.tail_window, p.entropy_window
        )


def _holder(chain: Chain, position: int) -> tuple[Segment, int]:
    """The segment that holds the token at a position of the path, and the token's place in it."""
    at = position - chain.start
    for piece in chain.pieces:
        if at < len(piece):
            return piece, at
        at -= len(piece)
    raise AssertionError(f"position {position} lies beyond {chain.start}..{chain.stop}")
