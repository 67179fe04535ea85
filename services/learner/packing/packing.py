"""Packs parts of trees into sequences that one forward pass computes. Pure numpy.

A packed sequence is a run of tokens, a list of blocks (its parts, which do not attend to each
other), the predictions that its paths need, and an index that gathers them back to paths. Work
that all share is done once: a trunk that all prompts of the sequence begin with (a chat template,
a system message), and equal predictions (place, temperature, token).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from services.learner.packing import head_observations
from services.learner.packing.head_observations import NO_OBSERVATIONS, HeadObservations
from services.learner.packing.unroll import Bools, Floats, Ints, Path, TreePart


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequence:
    """Parts of trees as one input of the model, with what its paths recorded.

    Axes: `_U` unique tokens, `_R` readouts (places whose logits are needed, by temperature), `_E`
    predictions (sorted by readout), `_P_T` tokens of paths.

    token_U, position_U: token, and its position on its path.
    enter_U, leave_U: node of the token, and the last node below that one, in DFS pre-order.
    trunk: number of first tokens that every block attends to; they belong to none.
    blocks: start and stop of each part behind the trunk.
    place_R, temperature_R: unique token that is read, and the temperature of its logits.
    readout_E, token_E: readout of the prediction, and the token that is predicted.
    index_P_T, mask_P_T: prediction of each token of a path; true where the path has a token.
    behaviour_P_T, drawn_P_T, foreign_P_T, advantage_P_T, share_P_T, origin_P_T: fields of Path.
    head_observations: what the sequence teaches the value head.
    """

    token_U: Ints
    position_U: Ints
    enter_U: Ints
    leave_U: Ints
    trunk: int
    blocks: tuple[tuple[int, int], ...]
    place_R: Ints
    temperature_R: Floats
    readout_E: Ints
    token_E: Ints
    index_P_T: Ints
    mask_P_T: Bools
    behaviour_P_T: Floats
    drawn_P_T: Floats
    foreign_P_T: Bools
    advantage_P_T: Floats
    share_P_T: Floats
    origin_P_T: Ints
    head_observations: HeadObservations = NO_OBSERVATIONS


def pack(parts: Iterable[TreePart], budget: int) -> list[PackedSequence]:
    """Pack parts into sequences of at most `budget` tokens, first fit in order.

    A part above the budget gets a sequence of its own; a part that trains nothing is left out.
    """
    bins: list[list[TreePart]] = []
    capacity: list[int] = []
    for part in parts:
        if not any(len(path.token_T) for path in part.paths):
            continue
        at = next((i for i, free in enumerate(capacity) if len(part) <= free), None)
        if at is None:
            bins.append([])
            capacity.append(budget)
            at = len(bins) - 1
        bins[at].append(part)
        capacity[at] -= len(part)
    return [_sequence(members) for members in bins]


def _shared_trunk(parts: Sequence[TreePart]) -> int:
    """Return how many tokens the prompts of all parts begin with in common; 0 for a single part.

    Every part keeps at least one token of its own.
    """
    if len(parts) < 2:
        return 0
    limit = min(min(int((p.enter_U == p.enter_U[0]).sum()), len(p) - 1) for p in parts)
    same = np.all([p.token_U[:limit] == parts[0].token_U[:limit] for p in parts], axis=0)
    return limit if same.all() else int(same.argmin())


@dataclass(frozen=True, slots=True)
class _PlacedPath:
    """A path with the start of its part in the sequence, behind a trunk of so many tokens."""

    path: Path
    trunk: int
    start: int

    def moved(self, place: Ints) -> Ints:
        """Turn places in the part into places in the sequence."""
        return np.where(place < self.trunk, place, place + self.start - self.trunk)


@dataclass(frozen=True, slots=True)
class _Predictions:
    """The distinct readouts and predictions of a sequence, and the prediction of each token."""

    place_R: Ints
    temperature_R: Floats
    readout_E: Ints
    token_E: Ints
    index_P_T: Ints
    mask_P_T: Bools


def _sequence(parts: Sequence[TreePart]) -> PackedSequence:
    trunk = _shared_trunk(parts)
    starts = np.cumsum([trunk, *(len(part) - trunk for part in parts)])
    placed = [
        _PlacedPath(path, trunk, int(start))
        for part, start in zip(parts, starts, strict=False)
        for path in part.paths
        if len(path.token_T)
    ]
    predictions = _distinct_predictions(placed)

    def tokens(name: str) -> Any:
        own = [getattr(part, name)[trunk:] for part in parts]
        return np.concatenate([getattr(parts[0], name)[:trunk], *own])

    def padded(name: str, dtype: type) -> Any:
        return _padded([getattr(one.path, name) for one in placed], dtype)

    return PackedSequence(
        token_U=tokens("token_U"),
        position_U=tokens("position_U"),
        enter_U=tokens("enter_U"),
        leave_U=tokens("leave_U"),
        trunk=trunk,
        blocks=tuple((int(start), int(stop)) for start, stop in pairwise(starts)),
        place_R=predictions.place_R,
        temperature_R=predictions.temperature_R,
        readout_E=predictions.readout_E,
        token_E=predictions.token_E,
        index_P_T=predictions.index_P_T,
        mask_P_T=predictions.mask_P_T,
        behaviour_P_T=padded("behaviour_T", np.float64),
        drawn_P_T=padded("drawn_T", np.float64),
        foreign_P_T=padded("foreign_T", np.bool_),
        advantage_P_T=padded("advantage_T", np.float64),
        share_P_T=padded("share_T", np.float64),
        origin_P_T=padded("origin_T", np.int64),
        head_observations=head_observations.concatenate(
            (one.path.head_observations, one.moved(one.path.head_observations.place_O))
            for one in placed
        ),
    )


def _distinct_predictions(placed: Sequence[_PlacedPath]) -> _Predictions:
    """Number the distinct readouts (place, temperature) and predictions (readout, token)."""
    place = np.concatenate([one.moved(one.path.predictor_T) for one in placed])
    temperature = np.concatenate([one.path.temperature_T for one in placed])
    token = np.concatenate([one.path.token_T for one in placed])
    temperatures, kind = np.unique(temperature, return_inverse=True)
    key_R, readout = np.unique(place * len(temperatures) + kind, return_inverse=True)
    width = int(token.max()) + 1
    key_E, index = np.unique(readout * width + token, return_inverse=True)
    mask_P_T = _padded([np.ones(len(one.path.token_T), np.bool_) for one in placed], np.bool_)
    index_P_T = np.zeros(mask_P_T.shape, np.int64)
    index_P_T[mask_P_T] = index
    return _Predictions(
        place_R=key_R // len(temperatures),
        temperature_R=temperatures[key_R % len(temperatures)],
        readout_E=key_E // width,
        token_E=key_E % width,
        index_P_T=index_P_T,
        mask_P_T=mask_P_T,
    )


def _padded(values: Sequence[Any], dtype: type) -> Any:
    """Stack arrays, with zeros behind the shorter ones."""
    padded: Any = np.zeros((len(values), max(len(v) for v in values)), dtype)
    for line, value in zip(padded, values, strict=True):
        line[: len(value)] = value
    return padded
