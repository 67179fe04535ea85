"""What an engine says of each token beside its log-prob and entropy, where a plan asked for it. Not part of any identity.

All is of the untempered distribution, so that it does not depend on how the token was drawn. Values are half floats from
the start: a plan sees equal numbers before and after a crash.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from banyan.errors import InvalidInput

MOST_TOP = 20
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Signals that a plan wants. top: likeliest tokens with their log-probs. semantic: likeliest tokens that F runs over."""

    top: int = 0
    semantic: int = 0

    def __post_init__(self) -> None:
        for name in ("top", "semantic"):
            if not 0 <= getattr(self, name) <= MOST_TOP:
                raise InvalidInput(f"signal {name} runs over {getattr(self, name)} tokens; it can over 0 to {MOST_TOP}")

    def __bool__(self) -> bool:
        return bool(self.top or self.semantic)


NO_SIGNALS = Wanted()


def halves(values: Any, shape: tuple[int, ...]) -> Floats:
    """float32 values that half floats can hold exactly."""
    array = np.asarray(values, np.float32).astype(np.float16).astype(np.float32).reshape(shape)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False, slots=True)
class Signals:
    """Signals of T tokens; an array is empty where it was not asked for.

    top_ids_T_K, top_logprobs_T_K: the K likeliest tokens, likeliest first, and their log-probs.
    semantic_T: F = Σ_{i≠j} p_i p_j cos(e_i, e_j) over the likeliest tokens' embeddings (ROSE, card 30): above 0 where the
    alternatives mean the same, below 0 where they are opposed.
    """

    top_ids_T_K: Ids = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    top_logprobs_T_K: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    semantic_T: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    def __post_init__(self) -> None:
        ids = np.array(self.top_ids_T_K, np.int32)
        if ids.ndim != 2 or np.shape(self.top_logprobs_T_K) != ids.shape:
            shapes = f"{np.shape(self.top_ids_T_K)} and {np.shape(self.top_logprobs_T_K)}"
            raise InvalidInput(f"likeliest tokens and their log-probs have shapes {shapes}; they need one [T, K]")
        ids.flags.writeable = False
        object.__setattr__(self, "top_ids_T_K", ids)
        object.__setattr__(self, "top_logprobs_T_K", halves(self.top_logprobs_T_K, ids.shape))
        object.__setattr__(self, "semantic_T", halves(self.semantic_T, (-1,)))

    def __bool__(self) -> bool:
        return bool(self.top_ids_T_K.size or self.semantic_T.size)

    def __getitem__(self, tokens: slice) -> "Signals":
        """Signals of a run of the tokens."""
        if not self:
            return self
        top = slice(0, 0) if not self.top_ids_T_K.size else tokens
        return Signals(self.top_ids_T_K[top], self.top_logprobs_T_K[top], self.semantic_T[tokens])

    def check(self, tokens: int) -> None:
        """Raises InvalidInput unless each signal has a value a token, or none."""
        for name, count in (("likeliest tokens", len(self.top_ids_T_K)), ("semantic values", len(self.semantic_T))):
            if count not in (0, tokens):
                raise InvalidInput(f"a segment of {tokens} tokens has {count} {name}; give one per token")


NOTHING_SAID = Signals()  # most segments come without signals: one for all of them


def joined(parts: Sequence[Signals]) -> Signals:
    """Signals of runs of tokens that follow each other; a signal that one of them lacks is left out."""
    tops = [p for p in parts if p.top_ids_T_K.size]
    width = min((p.top_ids_T_K.shape[1] for p in tops), default=0)
    ids = [p.top_ids_T_K[:, :width] for p in tops] if len(tops) == len(parts) else []
    logprobs = [p.top_logprobs_T_K[:, :width] for p in tops] if len(tops) == len(parts) else []
    semantic = [p.semantic_T for p in parts] if all(p.semantic_T.size for p in parts) else []
    if not ids:
        ids, logprobs = [np.zeros((0, 0), np.int32)], [np.zeros((0, 0), np.float32)]
    return Signals(np.concatenate(ids), np.concatenate(logprobs), np.concatenate(semantic or [np.zeros(0, np.float32)]))
