"""Observations for a policy's value head: a state, the outcome of the path, the chance it was kept.

The tree policy chooses the tokens (`observations`) from recorded facts alone, so that a replay
trains the head on the same ones. Pure numpy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from banyan.errors import InvalidInput
from banyan.plugins import Observation
from banyan.tree import Leaf

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
LeafObservations = Mapping[Leaf, Sequence[Observation]]


@dataclass(frozen=True, slots=True, eq=False)
class HeadObservations:
    """`_O` observations of a path, of a part of a tree or of a packed sequence.

    place_O: token whose last-layer state the head reads.
    label_O: reward of the path, in 0..1.
    kept_O: probability, in (0, 1], with which the path was kept.
    recorded_O: score that the head gave while the path was sampled; nan if none, or by other
        weights than the ones in training.
    """

    place_O: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    label_O: Floats = field(default_factory=lambda: np.zeros(0))
    kept_O: Floats = field(default_factory=lambda: np.zeros(0))
    recorded_O: Floats = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.place_O)


NO_OBSERVATIONS = HeadObservations()


def concatenate(parts: Iterable[tuple[HeadObservations, Ints]]) -> HeadObservations:
    """Concatenate observations, with the places that stand beside each instead of its own."""
    filled = [(part, place_O) for part, place_O in parts if len(part)]
    if not filled:
        return NO_OBSERVATIONS
    return HeadObservations(
        place_O=np.concatenate([place_O for _, place_O in filled]),
        label_O=np.concatenate([part.label_O for part, _ in filled]),
        kept_O=np.concatenate([part.kept_O for part, _ in filled]),
        recorded_O=np.concatenate([part.recorded_O for part, _ in filled]),
    )


def of_path(
    observations: Sequence[Observation],
    *,
    reward: float,
    predictor_T: Ints,
    head_T: Floats,
    foreign_T: Bools,
) -> HeadObservations:
    """Return the observations of one path; none without a reward.

    `_T` are the tokens that the policy sampled on the path. A token's score was read at the place
    that predicts the token. Rewards beyond 0..1 count as 0 or 1. Raise InvalidInput for a place
    outside the path, or a probability outside (0, 1].
    """
    if not observations or not np.isfinite(reward):
        return NO_OBSERVATIONS
    at_O = np.array([o.at for o in observations], np.int64)
    if at_O.min() < 0 or at_O.max() >= len(predictor_T):
        raise InvalidInput(
            f"a head is observed at policy token {at_O.max()} of a path that has {len(predictor_T)}"
        )
    kept_O = np.array([o.kept for o in observations])
    if not ((kept_O > 0.0) & (kept_O <= 1.0)).all():
        raise InvalidInput(
            "a path that is there was kept with a probability in (0, 1], not "
            f"{kept_O.min()}..{kept_O.max()}"
        )
    return HeadObservations(
        place_O=predictor_T[at_O],
        label_O=np.full(len(at_O), min(1.0, max(0.0, reward))),
        kept_O=kept_O,
        recorded_O=np.where(foreign_T[at_O], np.nan, head_T[at_O]),
    )
