"""A running branch: what was sampled so far, and whether it has ended."""

from dataclasses import dataclass, field

import numpy as np

from banyan.segment import Finish
from services.rollout.engines.port import Policy, Request, Sampled, Tokenizer, no_floats
from services.rollout.engines.sampler import Drawn


@dataclass(eq=False, slots=True)
class Row:
    """One branch in a slot. `written` tokens of its path have KV there; the token sampled last has none yet."""

    request: Request
    cached_tokens: int
    written: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)

    @property
    def need(self) -> int:
        """Tokens of KV that it may come to."""
        return len(self.request.prefix_P) + self.request.sampling.max_new_tokens

    def take(self, drawn: Drawn, r: int) -> None:
        """Appends row r of a draw."""
        self.tokens.append(int(drawn.tokens_R[r]))
        self.logprobs.append(float(drawn.logprobs_R[r]))
        self.entropies.append(float(drawn.entropies_R[r]))
        sampling = self.request.sampling
        if sampling.truncated:
            # A greedy draw is of a distribution with one token.
            self.sampled.append(float(drawn.sampled_R[r]) if sampling.temperature else 0.0)

    def finish(self, tokenizer: Tokenizer) -> Finish | None:
        """Why it has ended, if it has."""
        if self.tokens[-1] in tokenizer.eos or self._said_stop(tokenizer):
            return Finish.STOP
        return Finish.BOUNDARY if len(self.tokens) >= self.request.sampling.max_new_tokens else None

    def _said_stop(self, tokenizer: Tokenizer) -> bool:
        stops = self.request.sampling.stop
        if not stops:
            return False
        text = tokenizer.decode(np.array(self.tokens, np.int32))
        return any(stop in text for stop in stops)

    def ended(self, finish: Finish, policy: Policy) -> Sampled:
        """The segment."""
        return Sampled(
            key=self.request.key,
            tokens_T=np.array(self.tokens, np.int32),
            logprobs_T=np.array(self.logprobs, np.float32),
            sampled_logprobs_T=np.array(self.sampled, np.float32),
            entropies_T=np.array(self.entropies, np.float32),
            finish=finish,
            policy=policy,
            cached_tokens=self.cached_tokens,
        )


def unstarted(request: Request, policy: Policy) -> Sampled:
    """The segment of a request that was stopped before its first token."""
    return Sampled(request.key, np.zeros(0, np.int32), no_floats(), Finish.ABORTED, policy)
