"""latr's rules: where a runner-up opens a branch, and when a branch is too much like its parent (card 7). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from banyan.segment import Kind, Segment
from methods.generate.chains import told
from methods.generate.latr.similarity import edit_distance, rouge_l, suffix_score

Choices = tuple[
    tuple[int, int], ...
]  # (rank, token) of tokens that may go on beside the path's own


@dataclass(frozen=True, slots=True)
class ForkRule:
    """A token opens a branch iff p > tau_abs and p_1 − p < tau_rel, both strictly. candidates: m likeliest tokens."""

    tau_abs: float
    tau_rel: float
    candidates: int = 2

    def fires(self, p_T_K: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Per token and candidate, given their probabilities, likeliest first."""
        p = np.asarray(p_T_K, np.float64)[:, : self.candidates]
        return np.asarray((p > self.tau_abs) & (p[:, :1] - p < self.tau_rel))


@dataclass(frozen=True, slots=True)
class Likeness:
    """When two runs of r tokens are too alike."""

    edit_distance: float  # per token, below it
    suffix: float  # above it
    rouge: float  # above it

    def between(self, a: Sequence[int], b: Sequence[int]) -> bool:
        """Whether they are."""
        return (
            (self.edit_distance > 0 and edit_distance(a, b) / len(a) < self.edit_distance)
            or (self.suffix < 1 and suffix_score(a, b) > self.suffix)
            or (self.rouge < 1 and rouge_l(a, b) > self.rouge)
        )


def openings(segment: Segment, rule: ForkRule) -> dict[int, Choices]:
    """The tokens of a segment at which others may go on, with those, likeliest first. None where the token was forced: its
    place was looked at in the parent."""
    if segment.kind is not Kind.POLICY:
        return {}
    ids = told(segment).top_ids_T_K[:, : rule.candidates]
    fires = rule.fires(np.exp(segment.signals.top_logprobs_T_K)) & (
        ids != segment.tokens_T[:, None]
    )
    found: dict[int, Choices] = {}
    for t, rank, token in zip(
        *(at.tolist() for at in fires.nonzero()), ids[fires].tolist(), strict=True
    ):
        found[t] = (*found.get(t, ()), (rank, token))
    return found
