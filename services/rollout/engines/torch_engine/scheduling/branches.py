"""A running branch: its sampled tokens, and whether it has ended.

Forced tokens come first. They take no draw: the first sampled token has position 0 of the branch's
draws, with or without forced ones before it. Neither an end token nor a stop string among them ends
the branch.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from banyan.policy import PolicyVersion
from banyan.segment import Finish, IntTokens
from services.rollout.engines.port import Request, Sampled, Tokenizer, no_floats
from services.rollout.engines.torch_engine.samples import LEAST, Samples, TokenSignals, signals
from services.rollout.engines.torch_engine.stop_strings import completed

if TYPE_CHECKING:  # branches of the scripted engine need no torch
    from services.rollout.engines.torch_engine.kv.prefix_cache import Match


@dataclass(eq=False, slots=True)
class RunningBranch:
    """A running branch.

    request: the segment to sample.
    cached_tokens: tokens of the prefix that were not prefilled again.
    written: tokens of the path that have KV, the first ones in the trunk, the rest in pages; the
        token sampled last has none yet.
    trunk: KV of the beginning of the path that it shares with other branches, if any.
    pages: its page table.
    since: number of branches that began before it.
    tokens: forced and sampled tokens.
    logprobs: log-probs of the tokens at the sampling temperature.
    sampled_logprobs: log-probs under the distribution drawn from, where these may differ.
    entropies: entropies of the untempered distributions.
    signals: the requested signals of the tokens.
    """

    request: Request
    cached_tokens: int
    written: int
    trunk: "Match | None" = None
    pages: list[int] = field(default_factory=list)
    since: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled_logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    signals: list[TokenSignals] = field(default_factory=list)

    @property
    def above(self) -> int:
        """Tokens of its path in its trunk."""
        return 0 if self.trunk is None else self.trunk.length

    @property
    def own(self) -> int:
        """Tokens in its pages."""
        return self.written - self.above

    @property
    def need(self) -> int:
        """Upper bound of the tokens in its pages."""
        return longest_path(self.request) - self.above

    @property
    def path(self) -> IntTokens:
        """Tokens of the whole path, prefix included."""
        return np.concatenate((self.request.prefix_P, np.array(self.tokens, np.int32)))

    @property
    def rest(self) -> Request:
        """Its remainder, as a request of its own."""
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
        """The next token if it is forced, else None."""
        at, forced = len(self.tokens), self.request.forced
        return forced[at] if at < len(forced) else None

    @property
    def position(self) -> int:
        """Place of the next token in the branch's draws: its index among the sampled ones."""
        return max(0, len(self.tokens) - len(self.request.forced))

    def append(self, samples: Samples, r: int) -> None:
        """Append the token of row r."""
        logprob = max(float(samples.logprobs_R[r]), LEAST)  # a forced token may be impossible
        if self.request.forced or self.request.sampling.truncated:
            sampled = self._sampled_logprob(logprob, float(samples.sampled_logprobs_R[r]))
            self.sampled_logprobs.append(sampled)
        self.tokens.append(int(samples.tokens_R[r]))
        self.logprobs.append(logprob)
        self.entropies.append(float(samples.entropies_R[r]))
        if (token_signals := samples.signals(r, self.request.signals)) is not None:
            self.signals.append(token_signals)

    def _sampled_logprob(self, logprob: float, sampled: float) -> float:
        if self.forced is not None:
            return 0.0
        if not self.request.sampling.truncated:
            return logprob
        # A greedy draw is from a distribution over a single token.
        return sampled if self.request.sampling.temperature else 0.0

    def finish(self, tokenizer: Tokenizer) -> Finish | None:
        """Return why the branch has ended; None while it goes on."""
        sampled = len(self.tokens) - len(self.request.forced)
        if sampled < 1:
            return None
        if self.tokens[-1] in tokenizer.eos or self._reached_stop(tokenizer):
            return Finish.STOP
        return Finish.BOUNDARY if sampled >= self.request.sampling.max_new_tokens else None

    def is_continued(self, finish: Finish, tokenizer: Tokenizer) -> bool:
        """Return whether a child of the ended branch is likely."""
        if self.request.forks_inside:
            return True
        if finish is Finish.STOP:
            return self.request.acts and self.tokens[-1] not in tokenizer.eos
        return finish is Finish.BOUNDARY and self.request.keep

    def _reached_stop(self, tokenizer: Tokenizer) -> bool:
        stops = self.request.sampling.stop
        return bool(stops) and completed(stops, self.tokens[len(self.request.forced) :], tokenizer)

    def ended(self, finish: Finish, policy: PolicyVersion) -> Sampled:
        """Return the segment: all forced tokens and what follows, or nothing."""
        if len(self.tokens) < len(self.request.forced):
            return unstarted(self.request, policy)
        return Sampled(
            key=self.request.key,
            tokens_T=np.array(self.tokens, np.int32),
            logprobs_T=np.array(self.logprobs, np.float32),
            sampled_logprobs_T=np.array(self.sampled_logprobs, np.float32),
            entropies_T=np.array(self.entropies, np.float32),
            finish=finish,
            policy=policy,
            cached_tokens=self.cached_tokens,
            signals=signals(self.signals),
        )


def longest_path(request: Request) -> int:
    """Return the most tokens that the path of a request may have."""
    return len(request.prefix_P) + len(request.forced) + request.sampling.max_new_tokens


def slot_capacity(prefix_P: IntTokens) -> int:
    """Return the KV tokens of a prefix in use: one more than it has, for a prefill's padding."""
    return len(prefix_P) + 1


def unstarted(request: Request, policy: PolicyVersion) -> Sampled:
    """Return the segment of a request that was stopped before its first token."""
    return Sampled(
        key=request.key,
        tokens_T=np.zeros(0, np.int32),
        logprobs_T=no_floats(),
        finish=Finish.ABORTED,
        policy=policy,
    )
