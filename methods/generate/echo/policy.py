"""echo: chains that branch once where the policy is unsure, and end where confidence is lost.

Paper: ECHO, arXiv 2602.02150
Formula: width = round(1 + α·(H − low)/(high − low) − β·(Cg − θ)/|θ|), in 1..max_branches
Left out: the published thresholds by default, as they cannot fire; they are `thresholds: published`

`chains` base chains are sampled. At its end each is searched for its first token of high entropy
and low confidence; there the likeliest tokens open branches, as many as entropy and confidence give
(the chain itself keeps its own token). The rest of `width` leaves is sampled afresh from the
prompt. Every path is examined after each `segment` tokens: where a cut rule fires, the path ends
there, inside its segment, and no more of it is sampled.

The published thresholds cannot fire: H of K tokens is at most ln K, 3.0 of 20 and below their 3.5,
and their measure of confidence is at least ln 5 = 1.6, above their 1.2 and 0.4. So by default a
token's H must reach the `entropy_high` quantile of its own chain's and Cg not exceed the
`confidence` quantile of it, and the scale of the width runs between the chain's own quantiles. A
path is cut by absolute numbers, as any chain has tokens below its own quantile: the mean of the k
largest probabilities falls below 0.5/k, or keeps falling below 0.8/k; they are shares of 1/k, its
most. No path is cut before all windows are full: a prompt allows many first words.

Forced tokens are context for the learner; all else is sampled at the recipe's temperature, so no
importance is lost.
"""

from dataclasses import dataclass, field

import numpy as np

from banyan.plugins import Branch, checks
from banyan.signals import MOST_TOP, Wanted
from banyan.tree import Leaf
from methods.generate.chains import Chain, signals_of
from methods.generate.coroutine_policy import Growing, Growth
from methods.generate.echo import confidence
from methods.generate.echo.confidence import Cut, Cuts, Profile, Width
from methods.generate.echo.scanned_path import ScannedPath

# entropy_high, entropy_low, confidence
_DEFAULTS = {
    "quantile": (0.9, 0.5, 0.5),
    "published": (3.5, 1.0, 1.2),
}
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
_NUMBERS = ("rise", "alpha", "beta", "floor", "cut_rise")
_OPTIONAL = ("entropy_high", "entropy_low", "confidence", "cut_confidence", "cut_tail")


@dataclass(frozen=True)
class Echo(Growing):
    """Entropy-confidence branching with cuts."""

    toy = "one_fork"
    forks_inside = True

    width: int = 32
    """n: leaves of a tree."""
    chains: int = 1
    """Base chains; each may branch once."""
    segment: int = 256
    """Tokens after which a path is examined: the most that a cut path wastes."""
    top: int = 20
    """K: likeliest tokens that entropy and confidence run over."""
    confidence_k: int = 5
    """k: tokens of these whose probabilities are the confidence."""
    thresholds: str = "quantile"
    """Meaning of entropy_high, entropy_low and confidence: quantiles of the chain, or published
    values."""
    measure: str | None = None
    """Measure of confidence: mean_probability, or neg_mean_log, which goes with the published
    thresholds."""
    entropy_high: float | None = None
    """H from which a token may branch."""
    entropy_low: float | None = None
    """H at which the width is the least."""
    confidence: float | None = None
    """Cg up to which a token may branch."""
    rise: float = 0.2
    """Nats that H must lie above the tokens before, for a branch."""
    min_depth: int = 4
    """Tokens of a chain before its first branch."""
    group_window: int = 4
    """Tokens of Cg."""
    tail_window: int = 8
    """Tokens of Ct."""
    entropy_window: int = 4
    """Tokens before that H is compared with."""
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
    """True if paths are cut."""
    cut_confidence: float | None = None
    """Cg below which a path is cut."""
    cut_tail: float | None = None
    """Ct at most, for a path to be cut when Ct keeps falling."""
    cut_rise: float = 0.5
    """Nats of rise, for a path to be cut when H keeps rising."""
    cut_steps: int = 3
    """Tokens in a row that count as keeping on."""

    def __post_init__(self) -> None:
        checks.whole(self, (*_COUNTS, *_MORE_COUNTS), 1)
        given = (name for name in _OPTIONAL if getattr(self, name) is not None)
        checks.finite(self, (*_NUMBERS, *given))
        if not self.confidence_k <= self.top <= MOST_TOP or self.max_branches > self.top:
            raise ValueError(
                f"confidence_k and max_branches may not exceed top, nor top {MOST_TOP}; top is "
                f"{self.top!r}"
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
                "quantiles must lie in 0..1, got entropy_high, entropy_low, confidence "
                f"{self.levels}"
            )
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor must be a probability below 1, got {self.floor!r}")

    @property
    def measured(self) -> str:
        """Measure of confidence in use."""
        return self.measure or (
            "neg_mean_log" if self.thresholds == "published" else "mean_probability"
        )

    @property
    def levels(self) -> tuple[float, float, float]:
        """Triple (entropy_high, entropy_low, confidence) in use."""
        high, low, theta = _DEFAULTS[self.thresholds]
        return (
            high if self.entropy_high is None else self.entropy_high,
            low if self.entropy_low is None else self.entropy_low,
            theta if self.confidence is None else self.confidence,
        )

    @property
    def cuts(self) -> Cuts:
        """Cut rules in use."""
        least, tail = 0.4, 1.0
        if self.measured == "mean_probability":
            least, tail = 0.5 / self.confidence_k, 0.8 / self.confidence_k
        full = max(self.group_window, self.tail_window, self.entropy_window)
        return Cuts(
            confidence=least if self.cut_confidence is None else self.cut_confidence,
            tail=tail if self.cut_tail is None else self.cut_tail,
            rise=self.cut_rise,
            steps=self.cut_steps,
            start=full - 1,
        )

    def branching(self, path: Profile) -> Width:
        """Return the branch rule on the scale of a chain."""
        high, low, theta = self.levels
        if self.thresholds == "quantile":
            high, low = confidence.quantiles(path.entropy_T, (high, low))
            (theta,) = confidence.quantiles(path.group_T, (theta,))
        return Width(
            entropy_high=high,
            entropy_low=low,
            confidence=theta,
            rise=self.rise,
            alpha=self.alpha,
            beta=self.beta,
            least=self.min_branches,
            most=self.max_branches,
        )

    async def grow(self, growth: Growth) -> None:
        """Grow the base chains, then their branches and fresh chains within the budget."""
        _Paths(
            policy=self,
            growth=growth,
            width=growth.width(self.width),
            measured=self.measured,
            cuts=self.cuts,
            wanted=Wanted(top=self.top),
        ).begin()


@dataclass(slots=True)
class _Paths:
    """Paths of one tree. A path once begun is never taken back.

    opened: each base chain's branches, a path and the token forced on it; None while it runs
    begun: number of branches begun of each base chain
    begun_fresh: number of chains begun that are no base chains
    """

    policy: Echo
    growth: Growth
    width: int
    measured: str
    cuts: Cuts
    wanted: Wanted
    opened: list[list[tuple[ScannedPath, int]] | None] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    begun_fresh: int = 0

    def begin(self) -> None:
        bases = min(self.policy.chains, self.width)
        self.opened, self.begun = [None] * bases, [0] * bases
        for ordinal in range(bases):
            self.growth.start(self._base(ordinal))
        self._fill()

    async def _base(self, ordinal: int) -> None:
        self.opened[ordinal] = self._branches(*await self._path(self._fresh(ordinal)))
        self._fill()

    def _fill(self) -> None:
        """Begin the paths that the budget allows now: branches in order of their chains, then fresh
        chains.

        A running chain reserves capacity for all branches that it may get.
        """
        left = self.width - len(self.opened)
        for base, opened in enumerate(self.opened):
            share = min(left, self.policy.max_branches - 1 if opened is None else len(opened))
            left -= share
            if opened is not None:
                new = opened[self.begun[base] : share]
                self.begun[base] += len(new)
                for path, token in new:
                    self.growth.start(self._path(path, (token,)))
        first = len(self.opened) + self.begun_fresh
        new_fresh = max(0, left - self.begun_fresh)
        self.begun_fresh += new_fresh
        for ordinal in range(first, first + new_fresh):
            self.growth.start(self._path(self._fresh(ordinal)))

    def _fresh(self, ordinal: int) -> ScannedPath:
        return ScannedPath(
            Chain(Branch(*self.growth.root, ordinal), 0, self.growth.view.max_path_tokens)
        )

    def _branches(
        self, path: ScannedPath, profile: Profile, cut: Cut | None
    ) -> list[tuple[ScannedPath, int]]:
        """Return a base chain's branches at its first uncertain token.

        The token lies before the chain's cut, and leaves budget for one more token.
        """
        chain = path.chain
        rule = self.policy.branching(profile if cut is None else profile.first(cut[0] + 1))
        at = rule.first(
            profile,
            self.policy.min_depth,
            min(chain.limit - 1, len(profile) if cut is None else cut[0]),
        )
        if at is None:
            return []
        width = rule.at(float(profile.entropy_T[at]), float(profile.group_T[at]))
        place = chain.place(at)
        likeliest = self._likeliest(chain, at, width)
        return [(path.below(Branch(*place, 1 + rank), at), token) for rank, token in likeliest]

    def _likeliest(self, chain: Chain, at: int, width: int) -> list[tuple[int, int]]:
        """Return the likeliest tokens beside the chain's own, with their ranks: at most width −
        1."""
        segment, offset = chain.holder(at)
        signals, own = signals_of(segment), int(segment.tokens_T[offset])
        tokens, p = signals.top_ids_T_K[offset], np.exp(signals.top_logprobs_T_K[offset])
        ranked = [
            (rank, int(tokens[rank]))
            for rank in range(min(width, len(tokens)))
            if p[rank] > self.policy.floor
        ]
        return [(rank, token) for rank, token in ranked if token != own][: width - 1]

    async def _path(
        self, path: ScannedPath, forced: tuple[int, ...] = ()
    ) -> tuple[ScannedPath, Profile, Cut | None]:
        """Sample a path to its leaf, examining it after each segment."""
        p = self.policy
        while True:
            begun = path.chain.stop + (0 if path.chain.pieces else len(forced))
            end = (begun // p.segment + 1) * p.segment
            more = path.chain.more(self.growth.view.sampling, end, forced, self.wanted)
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

    def _profile(self, path: ScannedPath) -> Profile:
        p = self.policy
        return confidence.profile(
            path.entropy_T,
            path.confidence_T,
            group=p.group_window,
            tail=p.tail_window,
            before=p.entropy_window,
        )
