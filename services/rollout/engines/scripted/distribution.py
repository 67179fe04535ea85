"""A known distribution of the next character: its draws, log-probs and signals."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from banyan.segment import Sampling
from services.rollout.engines.scripted.tokenizer import EMBEDDINGS
from services.rollout.engines.torch_engine.samples import LEAST

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Distribution:
    """Log-probs of all tokens.

    raw_V: untempered.
    tempered_V: at the temperature.
    sampled_V: of the distribution drawn from, with bias and truncation.
    """

    raw_V: Doubles
    tempered_V: Doubles
    sampled_V: Doubles

    @classmethod
    def of(cls, p_V: Doubles, sampling: Sampling) -> "Distribution":
        """Make a distribution of probabilities."""
        with np.errstate(divide="ignore"):
            raw = np.log(p_V)
        tempered = raw / (sampling.temperature or 1.0)
        tempered = tempered - np.logaddexp.reduce(tempered)
        biased = _biased(tempered, sampling)
        if sampling.temperature == 0.0:
            greedy = np.where(np.arange(len(p_V)) == biased.argmax(), 0.0, -np.inf)
            return cls(raw_V=raw, tempered_V=tempered, sampled_V=greedy)
        return cls(raw_V=raw, tempered_V=tempered, sampled_V=_truncated(biased, sampling))

    def token(self, u: float) -> int:
        """Return the token at the uniform number u, by inverse CDF."""
        cdf = self._cdf_V
        return int(np.searchsorted(cdf, u * cdf[-1], side="right"))

    @cached_property
    def _cdf_V(self) -> Doubles:
        return np.exp(self.sampled_V).cumsum()

    @cached_property
    def entropy(self) -> float:
        """Entropy of the untempered distribution, in nats."""
        p = np.exp(self.raw_V)
        return -float(np.sum(p[p > 0] * self.raw_V[p > 0]))

    @cached_property
    def order_V(self) -> npt.NDArray[np.int64]:
        """Tokens, likeliest first; of equals the lower number first."""
        return np.argsort(-self.raw_V, kind="stable")

    @cached_property
    def finite_V(self) -> Doubles:
        """Untempered log-probs in the range of half floats."""
        return np.maximum(self.raw_V, LEAST)

    @cached_property
    def semantic_V(self) -> Doubles:
        """Semantic score F over the first k + 1 likeliest tokens, with the tokenizer's embeddings.

        See Zhao et al. 2026 (ROSE, arXiv 2601.05053).
        """
        p = np.exp(self.raw_V[self.order_V])
        sums = (p[:, None] * EMBEDDINGS[self.order_V]).cumsum(0)
        return np.asarray((sums**2).sum(1) - (p**2).cumsum())


def _biased(log_p: Doubles, sampling: Sampling) -> Doubles:
    if not sampling.bias:
        return log_p
    out = log_p.copy()
    for token, added in sampling.bias:
        out[token] += added / (sampling.temperature or 1.0)
    return np.asarray(out - np.logaddexp.reduce(out))


def _truncated(log_p: Doubles, sampling: Sampling) -> Doubles:
    if not sampling.truncated:
        return log_p
    order = np.argsort(-log_p, kind="stable")
    mass = np.exp(log_p[order])
    keep = np.ones(len(order), bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    before = (mass * keep).cumsum() - mass * keep
    keep &= before < sampling.top_p * (mass * keep).sum()
    keep[0] = True
    out = np.full(len(log_p), -np.inf)
    out[order[keep]] = log_p[order[keep]]
    return np.asarray(out - np.logaddexp.reduce(out))
