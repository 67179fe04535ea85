"""A running branch: what was sampled so far, and whether it has ended.

Forced tokens come first. They take no draw: the first sampled token has position 0 of the branch's draws, with or without
forced ones before it. Neither an end token nor a stop string among them ends anything.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from banyan.policy import PolicyVersion
from banyan.segment import Finish, IntTokens
from services.rollout.engines.port import Request, Sampled, Tokenizer, no_floats
from services.rollout.engines.torch_engine.samples import LEAST, Samples, TokenSignals, signals
from services.rollout.engines.torch_engine.stop_strings import completed

if TYPE_CHECKING:  # rows of the scripted engine need no torch
    from services.rollout.engines.torch_engine.kv.prefix_cache import Match


@dataclass(eq=False, slots=True)
class RunningBranch:
    """One branch. `written` tokens of its path have KV, the first ones in its trunk, if it shares one, and the rest in its
    pages; the token sampled last has none yet. since: branches that began before it."""

    request: Request
    cached_tokens: int
    written: int
    trunk: "Match | None" = None
    pages: list[int] = field(default_factory=list)
    since: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    said: list[TokenSignals] = field(default_factory=list)

    @property
    def above(self) -> int:
        """Tokens of its path in its trunk."""
        return 0 if self.trunk is None else self.trunk.length

    @property
    def own(self) -> int:
        """Tokens that its pages hold."""
        return self.written - self.above

    @property
    def need(self) -> int:
        """Tokens of KV that its pages may come to."""
        return need(self.request) - self.above

    @property
    def path(self) -> IntTokens:
        """All its tokens."""
        return np.concatenate((self.request.prefix_P, np.array(self.tokens, np.int32)))

    @property
    def rest(self) -> Request:
        """What is still to be sampled of it, as a request of its own."""
        done, forced, sampling = len(self.tokens), self.request.forced, self.request.sampling
        left = sampling.max_new_tokens - max(0, done - len(forced))
        return replace(
            self.request,
            prefix_P=self.path,
            forced=forced[done:],
            sampling=replace(sampling, max_new_tokens=left),
        )

    @property
    def forced(self) -> int | None:
        """The token that comes next whatever the model says, if there is one."""
        at, forced = len(self.tokens), self.request.forced
        return forced[at] if at < len(forced) else None

    @property
    def position(self) -> int:
        """Place of the next token in the branch's draws: its index among the sampled ones."""
        return max(0, len(self.tokens) - len(self.request.forced))

    def take(self, drawn: Samples, r: int) -> None:
        """Appends row r of a draw."""
        logprob = max(float(drawn.logprobs_R[r]), LEAST)  # a forced token may be one that cannot be
        if self.request.forced or self.request.sampling.truncated:
            self.sampled.append(self._sampled_logprob(logprob, float(drawn.sampled_R[r])))
        self.tokens.append(int(drawn.tokens_R[r]))
        self.logprobs.append(logprob)
        self.entropies.append(float(drawn.entropies_R[r]))
        if (said := drawn.said(r, self.request.signals)) is not None:
            self.said.append(said)

    def _sampled_logprob(self, logprob: float, sampled: float) -> float:
        if self.forced is not None:
            return 0.0
        if not self.request.sampling.truncated:
            return logprob
        return (
            sampled if self.request.sampling.temperature else 0.0
        )  # a greedy draw is of a distribution with one token

    def finish(self, tokenizer: Tokenizer) -> Finish | None:
        """Why it has ended, if it has."""
        drawn = len(self.tokens) - len(self.request.forced)
        if drawn < 1:
            return None
        if self.tokens[-1] in tokenizer.eos or self._said_stop(tokenizer):
            return Finish.STOP
        return Finish.BOUNDARY if drawn >= self.request.sampling.max_new_tokens else None

    def _said_stop(self, tokenizer: Tokenizer) -> bool:
        stops = self.request.sampling.stop
        return bool(stops) and completed(stops, self.tokens[len(self.request.forced) :], tokenizer)

    def ended(self, finish: Finish, policy: PolicyVersion) -> Sampled:
        """The segment: all forced tokens and what follows, or nothing."""
        if len(self.tokens) < len(self.request.forced):
            return unstarted(self.request, policy)
        return Sampled(
            key=self.request.key,
            tokens_T=np.array(self.tokens, np.int32),
            logprobs_T=np.array(self.logprobs, np.float32),
            sampled_logprobs_T=np.array(self.sampled, np.float32),
            entropies_T=np.array(self.entropies, np.float32),
            finish=finish,
            policy=policy,
            cached_tokens=self.cached_tokens,
            signals=signals(self.said),
        )


def need(request: Request) -> int:
    """Tokens that the path of a request may come to."""
    return len(request.prefix_P) + len(request.forced) + request.sampling.max_new_tokens


def room(prefix_P: IntTokens) -> int:
    """Tokens of KV that a prefix takes while it is in use: one more than it has, for what a prefill need not write."""
    return len(prefix_P) + 1


def unstarted(request: Request, policy: PolicyVersion) -> Sampled:
    """The segment of a request that was stopped before its first token."""
    return Sampled(request.key, np.zeros(0, np.int32), no_floats(), Finish.ABORTED, policy)
