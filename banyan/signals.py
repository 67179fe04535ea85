"""Signals: an engine's numbers for each token beside log-prob and entropy, at a plan's request.

They are part of no identity. All are of the untempered distribution, so that they do not depend on
how the token was drawn. Values are half floats from the start: a plan sees equal numbers before and
after a crash. The head's score is a number like any other: a plan never sees the state that it was
read from.
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
    """Signals that a plan requests.

    top: number of likeliest tokens to record with their log-probs
    semantic: number of likeliest tokens that F runs over
    head: whether to record the score of the policy's learned head
    entropy: whether the segment's `entropies_T` are needed, which engines record unasked if they
        can
    """

    top: int = 0
    semantic: int = 0
    head: bool = False
    entropy: bool = False

    def __post_init__(self) -> None:
        for name in ("top", "semantic"):
            if not 0 <= getattr(self, name) <= MOST_TOP:
                raise InvalidInput(
                    f"signal {name} runs over {getattr(self, name)} tokens; it can over 0 to "
                    f"{MOST_TOP}"
                )

    def __bool__(self) -> bool:
        return bool(self.top or self.semantic or self.head or self.entropy)


NO_SIGNALS = Wanted()
_NO_FLOATS: Floats = np.zeros(0, np.float32)
_NO_FLOATS.flags.writeable = False


def halves(values: Any, shape: tuple[int, ...]) -> Floats:
    """Return float32 values that half floats hold exactly."""
    if shape == (-1,) and len(values) == 0:
        return _NO_FLOATS
    array = np.asarray(values, np.float32).astype(np.float16).astype(np.float32).reshape(shape)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False, slots=True)
class Signals:
    """Signals of T tokens; an array is empty where it was not requested.

    top_ids_T_K, top_logprobs_T_K: the K likeliest tokens, likeliest first, and their log-probs
    semantic_T: F = Σ_{i≠j} p_i p_j cos(e_i, e_j) over the likeliest tokens' embeddings (ROSE, Zhao
        et al. 2026, arXiv 2601.05053): above 0 where the alternatives mean the same, below 0 where
        they are opposed
    head_T: p in 0..1 that the path will be right, by the learned head of the policy that sampled
        the token. It is read from the last layer's state that the token was drawn from, which knows
        all tokens before this one, and not this one. It is also empty while the policy's head has
        learned too little.
    """

    top_ids_T_K: Ids = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    top_logprobs_T_K: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    semantic_T: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    head_T: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    def __post_init__(self) -> None:
        ids, logprobs = np.array(self.top_ids_T_K, np.int32), np.asarray(self.top_logprobs_T_K)
        if ids.ndim != 2 or logprobs.shape != ids.shape:
            shapes = f"{ids.shape} and {logprobs.shape}"
            raise InvalidInput(
                f"likeliest tokens and their log-probs have shapes {shapes}; they need one [T, K]"
            )
        ids.flags.writeable = False
        object.__setattr__(self, "top_ids_T_K", ids)
        object.__setattr__(self, "top_logprobs_T_K", halves(logprobs, ids.shape))
        object.__setattr__(self, "semantic_T", halves(self.semantic_T, (-1,)))
        object.__setattr__(self, "head_T", halves(self.head_T, (-1,)))

    def __bool__(self) -> bool:
        return bool(self.top_ids_T_K.size or self.semantic_T.size or self.head_T.size)

    def __getitem__(self, tokens: slice) -> "Signals":
        """Return the signals of a run of the tokens."""
        if not self or (tokens.start == 0 and tokens.stop == self._tokens):
            return self
        top = slice(0, 0) if not self.top_ids_T_K.size else tokens
        return Signals(
            self.top_ids_T_K[top],
            self.top_logprobs_T_K[top],
            self.semantic_T[tokens],
            self.head_T[tokens],
        )

    @property
    def _tokens(self) -> int:
        return len(self.top_ids_T_K) or len(self.semantic_T) or len(self.head_T)

    def check(self, tokens: int) -> None:
        """Raise InvalidInput unless each signal has one value per token, or none."""
        counts = len(self.top_ids_T_K), len(self.semantic_T), len(self.head_T)
        for name, count in zip(
            ("likeliest tokens", "semantic values", "scores of a head"), counts, strict=True
        ):
            if count not in (0, tokens):
                raise InvalidInput(
                    f"a segment of {tokens} tokens has {count} {name}; give one per token"
                )


EMPTY_SIGNALS = Signals()  # shared by all segments without signals, which are most


def joined(parts: Sequence[Signals]) -> Signals:
    """Return the signals of consecutive runs of tokens; a signal that one run lacks is left out."""
    if len(parts) == 1:
        return parts[0]
    tops = [p for p in parts if p.top_ids_T_K.size]
    width = min((p.top_ids_T_K.shape[1] for p in tops), default=0)
    ids = [p.top_ids_T_K[:, :width] for p in tops] if len(tops) == len(parts) else []
    logprobs = [p.top_logprobs_T_K[:, :width] for p in tops] if len(tops) == len(parts) else []
    if not ids:
        ids, logprobs = [np.zeros((0, 0), np.int32)], [np.zeros((0, 0), np.float32)]
    semantic_T, head_T = (
        _all_of([getattr(p, name) for p in parts]) for name in ("semantic_T", "head_T")
    )
    return Signals(np.concatenate(ids), np.concatenate(logprobs), semantic_T, head_T)


def _all_of(values: Sequence[Floats]) -> Floats:
    """Return the concatenated values; none if a part has none."""
    return (
        np.concatenate(values)
        if values and all(part.size for part in values)
        else np.zeros(0, np.float32)
    )
