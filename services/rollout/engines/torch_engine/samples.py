"""The result of a draw: a token per row with its log-probs, entropy and requested signals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from banyan.segment import Floats, IntTokens
from banyan.signals import Signals, Wanted

_NO_IDS, _NO_FLOATS = np.zeros(0, np.int32), np.zeros(0, np.float32)
# Log-prob of an impossible token: segments and signals store finite half floats.
LEAST = float(np.finfo(np.float16).min)


@dataclass(frozen=True, slots=True, eq=False)
class TopTokens:
    """The K likeliest tokens of each row's untempered distribution; zeros where not requested.

    ids_R_K: the tokens.
    logprobs_R_K: their log-probs.
    semantic_R_K: column k is the semantic score F over the first k + 1 of them (Zhao et al. 2026,
        ROSE, arXiv 2601.05053); empty unless a row requests it.
    """

    ids_R_K: IntTokens
    logprobs_R_K: Floats
    semantic_R_K: Floats

    @property
    def width(self) -> int:
        """K."""
        return int(self.ids_R_K.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class TokenSignals:
    """Signals of one token: its likeliest alternatives, semantic score and head score."""

    ids_K: IntTokens
    logprobs_K: Floats
    semantic: float | None
    head: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """One token per row.

    tokens_R: the tokens.
    logprobs_R: their log-probs at the sampling temperature.
    sampled_logprobs_R: their log-probs under the distribution drawn from, which differ where it is
        truncated or biased.
    entropies_R: entropies of the untempered distributions.
    top_tokens: likeliest tokens, if a row requests them.
    head_R: the head's score of the state that each token was drawn from, if a row requests it; nan
        where there is no head.
    """

    tokens_R: IntTokens
    logprobs_R: Floats
    sampled_logprobs_R: Floats
    entropies_R: Floats
    top_tokens: TopTokens | None = None
    head_R: Floats | None = None

    def signals(self, r: int, wanted: Wanted) -> TokenSignals | None:
        """Return the signals that row r requests; None without any."""
        head = self._head(r) if wanted.head else None
        top = self.top_tokens
        if top is None or not (wanted.top or wanted.semantic):
            return None if head is None else TokenSignals(_NO_IDS, _NO_FLOATS, None, head)
        semantic = None
        if wanted.semantic:
            semantic = float(top.semantic_R_K[r, min(wanted.semantic, top.width) - 1])
        return TokenSignals(
            ids_K=top.ids_R_K[r, : wanted.top],
            logprobs_K=top.logprobs_R_K[r, : wanted.top],
            semantic=semantic,
            head=head,
        )

    def _head(self, r: int) -> float | None:
        if self.head_R is None or not np.isfinite(self.head_R[r]):
            return None
        return float(self.head_R[r])


def signals(tokens: Sequence[TokenSignals]) -> Signals:
    """Stack the signals of consecutive tokens."""
    if not tokens:
        return Signals()
    semantic_T = np.array([t.semantic for t in tokens if t.semantic is not None], np.float32)
    head_T = np.array([t.head for t in tokens if t.head is not None], np.float32)
    ids = np.stack([t.ids_K for t in tokens])
    if not ids.size:
        return Signals(semantic_T=semantic_T, head_T=head_T)
    logprobs = np.stack([t.logprobs_K for t in tokens])
    return Signals(ids, logprobs, semantic_T, head_T)
