"""Rules of latr: for opening a branch, and for deleting one that is too much like its parent."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from banyan.segment import Kind, Segment
from methods.generate.chains import signals_of
from methods.generate.latr.similarity import edit_distance, rouge_l, suffix_score

Choices = tuple[tuple[int, int], ...]  # (rank, token) of alternatives to the path's own token


@dataclass(frozen=True, slots=True)
class ForkRule:
    """Rule for opening branches: p > tau_abs and p_1 − p < tau_rel, both strictly.

    candidates: m likeliest tokens
    """

    tau_abs: float
    tau_rel: float
    candidates: int = 2

    def fires(self, p_T_K: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return a mask by token and candidate, given their probabilities, likeliest first."""
        p = np.asarray(p_T_K, np.float64)[:, : self.candidates]
        return np.asarray((p > self.tau_abs) & (p[:, :1] - p < self.tau_rel))


@dataclass(frozen=True, slots=True)
class Likeness:
    """Rule for runs of r tokens that are too alike.

    edit_distance: edit distance per token, below it
    suffix: suffix score, above it
    rouge: ROUGE-L, above it
    """

    edit_distance: float
    suffix: float
    rouge: float

    def between(self, a: Sequence[int], b: Sequence[int]) -> bool:
        """Return whether two runs are too alike."""
        return (
            (self.edit_distance > 0 and edit_distance(a, b) / len(a) < self.edit_distance)
            or (self.suffix < 1 and suffix_score(a, b) > self.suffix)
            or (self.rouge < 1 and rouge_l(a, b) > self.rouge)
        )


def openings(segment: Segment, rule: ForkRule) -> dict[int, Choices]:
    """Return the alternatives to a segment's tokens, by token, likeliest first.

    Empty for a forced segment: its place was examined in the parent.
    """
    if segment.kind is not Kind.POLICY:
        return {}
    ids = signals_of(segment).top_ids_T_K[:, : rule.candidates]
    fires = rule.fires(np.exp(segment.signals.top_logprobs_T_K)) & (
        ids != segment.tokens_T[:, None]
    )
    choices: dict[int, Choices] = {}
    for t, rank, token in zip(
        *(at.tolist() for at in fires.nonzero()), ids[fires].tolist(), strict=True
    ):
        choices[t] = (*choices.get(t, ()), (rank, token))
    return choices
