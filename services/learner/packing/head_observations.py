"""Where a batch's paths show whether its policy's head is right: a state, what came of the path, how likely it was kept.

The tree policy says which tokens count (`observations`), from recorded facts alone, so a replay learns from the same ones.
Pure numpy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from banyan.errors import InvalidInput
from banyan.plugins import Observation
from banyan.tree import Leaf

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Observed = Mapping[Leaf, Sequence[Observation]]


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """place: the token whose last-layer state is read. label: the path's reward, in 0..1. kept: how likely the path was
    kept. said: what the head said of it while it was sampled; nan where nothing, or by other weights."""

    place_S: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    label_S: Floats = field(default_factory=lambda: np.zeros(0))
    kept_S: Floats = field(default_factory=lambda: np.zeros(0))
    said_S: Floats = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.place_S)


NOTHING = Watched()


def joined(parts: Iterable[tuple[Watched, Ints]]) -> Watched:
    """Several in a row, each with its places moved to those given."""
    held = [(w, place_S) for w, place_S in parts if len(w)]
    if not held:
        return NOTHING
    rest = [
        np.concatenate([getattr(w, name) for w, _ in held])
        for name in ("label_S", "kept_S", "said_S")
    ]
    return Watched(np.concatenate([place_S for _, place_S in held]), *rest)


def of_path(
    observations: Sequence[Observation],
    reward: float,
    predictor_T: Ints,
    said_T: Floats,
    foreign_T: Any,
) -> Watched:
    """What a path shows. A token's score was read where the token is predicted from. Rewards beyond 0..1 count as 0 or 1."""
    if not observations or not np.isfinite(reward):
        return NOTHING
    at = np.array([o.at for o in observations], np.int64)
    if at.min() < 0 or at.max() >= len(predictor_T):
        raise InvalidInput(
            f"a head is observed at policy token {at.max()} of a path that has {len(predictor_T)}"
        )
    kept_S = np.array([o.kept for o in observations])
    if not ((kept_S > 0.0) & (kept_S <= 1.0)).all():
        raise InvalidInput(
            f"a path that is there was kept with a probability in (0, 1], not {kept_S.min()}..{kept_S.max()}"
        )
    label_S = np.full(len(at), min(1.0, max(0.0, reward)))
    return Watched(predictor_T[at], label_S, kept_S, np.where(foreign_T[at], np.nan, said_T[at]))
