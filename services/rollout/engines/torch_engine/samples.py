"""What a draw gives: a token per row with its log-probs, entropy, and the likeliest tokens where a row asked for them."""

from dataclasses import dataclass

import numpy as np

from banyan.segment import Floats, IntTokens
from banyan.signals import Signals, Wanted

_NO_IDS, _NO_FLOATS = np.zeros(0, np.int32), np.zeros(0, np.float32)
LEAST = float(
    np.finfo(np.float16).min
)  # log-prob of what cannot be: segments and signals hold finite numbers


@dataclass(frozen=True, slots=True, eq=False)
class Likeliest:
    """The K likeliest tokens of the untempered distribution of each row; zeros for a row that did not ask.

    semantic_R_K[:, k] is F over the first k + 1 of them (card 30); empty unless a row asked for it.
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
    """Signals of one token."""

    ids_K: IntTokens
    logprobs_K: Floats
    semantic: float | None
    head: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """One token per row. sampled_R is of the distribution drawn from: it differs from logprobs_R where truncated.

    head_R: the head's score of the state that each token was drawn from, if a row asked for it; nan where there is no head.
    """

    tokens_R: IntTokens
    logprobs_R: Floats
    sampled_R: Floats
    entropies_R: Floats
    likeliest: Likeliest | None = None
    head_R: Floats | None = None

    def said(self, r: int, wanted: Wanted) -> TokenSignals | None:
        """The signals that row r asked for."""
        heard = wanted.head and self.head_R is not None and np.isfinite(self.head_R[r])
        head = float(self.head_R[r]) if heard and self.head_R is not None else None
        told = self.likeliest
        if told is None or not (wanted.top or wanted.semantic):
            return None if head is None else TokenSignals(_NO_IDS, _NO_FLOATS, None, head)
        semantic = (
            float(told.semantic_R_K[r, min(wanted.semantic, told.width) - 1])
            if wanted.semantic
            else None
        )
        return TokenSignals(
            told.ids_R_K[r, : wanted.top], told.logprobs_R_K[r, : wanted.top], semantic, head
        )


def signals(said: list[TokenSignals]) -> Signals:
    """Signals of a run of tokens."""
    if not said:
        return Signals()
    semantic = np.array([one.semantic for one in said if one.semantic is not None], np.float32)
    head = np.array([one.head for one in said if one.head is not None], np.float32)
    ids, logprobs = (
        np.stack([one.ids_K for one in said]),
        np.stack([one.logprobs_K for one in said]),
    )
    if not ids.size:
        return Signals(semantic_T=semantic, head_T=head)
    return Signals(ids, logprobs, semantic, head)
