"""Calibration of a head: equal-mass bins of its scores, and the share that was right in each.

After ARRoL (Prune as You Generate; ADR 017). Pure numpy.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def points(raw_O: Any, right_O: Any, weight_O: Any, bins: int) -> tuple[Floats, Floats]:
    """Return the mean score of each of `bins` bins of equal size, and the weighted share right.

    Bins with the same score are merged. With fewer observations than bins nothing can be
    estimated: the points are those of the identity.
    """
    raw, right, weight = (np.asarray(values, np.float64) for values in (raw_O, right_O, weight_O))
    if len(raw) < bins:
        return np.linspace(0.0, 1.0, bins), np.linspace(0.0, 1.0, bins)
    members = np.array_split(np.argsort(raw, kind="stable"), bins)
    raw_B = np.array([raw[m].mean() for m in members])
    hits_B = np.array([(weight[m] * right[m]).sum() for m in members])
    mass_B = np.array([weight[m].sum() for m in members])
    _, same = np.unique(raw_B, return_inverse=True)
    return raw_B, (np.bincount(same, hits_B) / np.bincount(same, mass_B))[same]
