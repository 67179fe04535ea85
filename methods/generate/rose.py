"""rose: rollouts that branch where the likeliest next tokens differ in meaning.

Paper: Zhao et al. 2026, ROSE, arXiv 2601.05053
Formula: branch at arg max −F·H, H = −Σ p ln p, F = Σ_{i≠j} p_i p_j cos(e_i, e_j)

Rollouts come one after the other. With probability ε one starts at the prompt; else the token with
the largest score over all tokens of all rollouts before it is sampled again, with its continuation;
the first token wins a tie. p runs over the likeliest tokens, not renormalised. The score is H
(entropy), −F (cosine) or −F·H (cosine-entropy). So a sure token, which scores 0, beats a choice
among synonyms, which scores less.

The choice of a rollout needs all before it, and nothing else: a start at the prompt waits for none,
which changes the time of tokens, never their place. With ε = 1 the requests are those of iid.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from banyan.errors import InvalidInput
from banyan.plugins import checks
from banyan.signals import MOST_TOP, NO_SIGNALS, Signals, Wanted, joined
from methods.generate.coroutine_policy import Growing, Growth, Place
from methods.generate.cuts import Run
from methods.generate.rollouts import Rollout, roll_out

METRICS = ("entropy", "cosine", "cosine-entropy")
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rose(Growing):
    """Sequential branching at the arg-max of semantic uncertainty, with restarts."""

    toy = "one_fork"
    forks_inside = True

    width: int = 8
    """n: leaves of a tree."""
    epsilon: float = 0.5
    """ε: probability that a rollout starts at the prompt; 1 is iid."""
    metric: str = "cosine-entropy"
    """Score of a token: entropy, cosine, cosine-entropy."""
    top: int = MOST_TOP
    """Likeliest tokens that H and F run over."""
    revisit: bool = False
    """True if a token may be chosen again, as in the published code; else the next best is."""

    def __post_init__(self) -> None:
        checks.whole(self, ("width", "top"), 1)
        if self.top > MOST_TOP:
            raise ValueError(f"top must be at most {MOST_TOP}, got {self.top!r}")
        if isinstance(self.epsilon, bool) or not 0.0 <= self.epsilon <= 1.0:
            raise ValueError(f"epsilon must lie in 0..1, got {self.epsilon!r}")
        if self.metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}")

    async def grow(self, growth: Growth) -> None:
        """Sample rollouts from the prompt at once, and each other one when all before it have
        ended."""
        width = growth.width(self.width)
        wanted = self._wanted()
        candidates = _Candidates(self)
        free = [
            n for n in range(width) if not n or growth.rng.uniform("rose.restart", n) < self.epsilon
        ]
        begun = {n: growth.start(roll_out(growth, n, growth.root, 0, wanted)) for n in free}
        if len(begun) == width:
            return
        for number in range(width):
            if number not in begun:
                start = candidates.best() or (growth.root, 0)
                begun[number] = growth.start(roll_out(growth, number, *start, wanted))
            candidates.add(await begun[number])

    def _wanted(self) -> Wanted:
        if self.epsilon == 1.0:
            return NO_SIGNALS
        return Wanted(
            self.top if self.metric != "cosine" else 0, self.top if self.metric != "entropy" else 0
        )


@dataclass(slots=True)
class _Candidates:
    """Rollouts so far, and their tokens in order of score.

    rollouts: rollouts that have ended
    ranks: score and number of each one's tokens, the largest first
    heap: (−score, rollout, own token, its rank) of each one's best remaining token
    visited: places that were chosen
    """

    policy: Rose
    rollouts: list[Rollout] = field(default_factory=list)
    ranks: list[list[tuple[float, int]]] = field(default_factory=list)
    heap: list[tuple[float, int, int, int]] = field(default_factory=list)
    visited: set[Place] = field(default_factory=set)

    def add(self, rollout: Rollout) -> None:
        self.rollouts.append(rollout)
        self.ranks.append(ranked(rollout.run, self.policy.metric))
        self._push(len(self.rollouts) - 1, 0)

    def best(self) -> tuple[Place, int] | None:
        """Return the place of the token to sample again, and the number of policy tokens before.

        Returns None if no token is left.
        """
        while self.heap:
            _, index, token, rank = self.heap[0]
            position = self.rollouts[index].start + token
            place = self.rollouts[index].place(position)
            if self.policy.revisit:
                return place, position
            heappop(self.heap)
            self._push(index, rank + 1)
            if place not in self.visited:
                self.visited.add(place)
                return place, position
        return None

    def _push(self, index: int, rank: int) -> None:
        order = self.ranks[index]
        if rank < len(order):
            score, token = order[rank]
            heappush(self.heap, (-score, index, token, rank))


def ranked(run: Run, metric: str) -> list[tuple[float, int]]:
    """Return score and number of a run's tokens, the largest first."""
    scored_T = scores(joined([piece.signals for piece in run.pieces]), metric, len(run))
    order = np.argsort(-scored_T, kind="stable")
    return list(zip(scored_T[order].tolist(), order.tolist(), strict=True))


def scores(signals: Signals, metric: str, tokens: int) -> Scores:
    """Return the score of each token. Raises InvalidInput if the engine gave no signals for
    them."""
    count = len(signals.semantic_T) if metric == "cosine" else len(signals.top_ids_T_K)
    if count != tokens or (metric == "cosine-entropy" and len(signals.semantic_T) != tokens):
        raise InvalidInput(
            f"rose needs the signals of metric {metric!r} for {tokens} tokens, and there are "
            f"{len(signals.top_ids_T_K)} rows of likeliest tokens and {len(signals.semantic_T)} "
            "semantic values; use an engine that offers them, or epsilon 1"
        )
    semantic = signals.semantic_T.astype(np.float64)
    if metric == "cosine":
        return np.asarray(-semantic)
    logprobs = signals.top_logprobs_T_K.astype(np.float64)
    entropy = -np.add.reduce(np.exp(logprobs) * np.where(logprobs == -np.inf, 0.0, logprobs), 1)
    return np.asarray(entropy if metric == "entropy" else -semantic * entropy)
